"""The description of a context binary, as JSON with the names of the vendor's utility."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.core.units import MIB
from openhtp.memory.needs import vtcm_of
from openhtp.program.binary import ContextBinary
from openhtp.program.packed import PackedGraph

_HTP = 6
_KIND = "QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_3"
_GRAPH = "QNN_SYSTEM_CONTEXT_GRAPH_INFO_VERSION_3"
_CONTEXT_BLOB = "QNN_SYSTEM_CONTEXT_HTP_CONTEXT_INFO_BLOB_VERSION_V1"
_GRAPH_BLOB = "QNN_SYSTEM_CONTEXT_HTP_GRAPH_INFO_BLOB_VERSION_V1"
# Of the artifact as a whole and of this header, as the newest utility writes them.
_ARTIFACT_VERSION = {"major": 3, "minor": 0, "patch": 0}
_HEADER_VERSION = {"major": 0, "minor": 1, "patch": 0}
# What the struct has that describes one graph: five numbers of 32 bits, with spill-fill in 64.
_GRAPH_BLOB_BYTES = 32
# How many channels the matrix unit's own layout of keys and of values holds at once.
NATIVE_K, NATIVE_V = 256, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersions:
    """The API versions of the library, which are not in a binary."""

    core: str
    backend: str
    build_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSizes:
    """Bytes of a stored graph: its program, weights of its own, weights that another has, too, and its ends."""

    op_data: int
    constants: int
    shared_weights: int
    io: int
    vtcm: int


def graph_sizes(binary: ContextBinary) -> dict[str, GraphSizes]:
    """The sizes of every graph, by its name. Only the header of the binary is looked at."""
    users = Counter(number for name in binary.graph_names for number in set(binary.data_of(name)))
    sizes = {}
    for name in binary.graph_names:
        graph = binary.packed(name)
        blobs = dict(zip(binary.data_of(name), graph.stored_data, strict=True))
        about = graph.info()
        sizes[name] = GraphSizes(
            op_data=sum(part.nbytes for part in (graph.words, graph.prepared, graph.chip) if part is not None),
            constants=sum(blob.nbytes for number, blob in blobs.items() if users[number] == 1),
            shared_weights=sum(blob.nbytes for number, blob in blobs.items() if users[number] > 1),
            io=sum(spec.nbytes for spec in (*about.inputs, *about.outputs)),
            vtcm=vtcm_of(about, binary.info.vtcm_mb * MIB),
        )
    return sizes


def context_binary_json(binary: ContextBinary, versions: ApiVersions) -> dict[str, Any]:
    """The document. Only the header of the binary is looked at."""
    sizes = graph_sizes(binary)
    about = binary.info
    return {
        "header": {
            "artifact_type": "CONTEXT_BINARY_INFO",
            "version": _ARTIFACT_VERSION,
            "header_version": _HEADER_VERSION,
        },
        "version": _KIND,
        "info": {
            "backendId": _HTP,
            "buildId": about.build_id or versions.build_id,
            "coreApiVersion": versions.core,
            "backendApiVersion": versions.backend,
            "socVersion": about.soc,
            "contextBlobVersion": about.blob_version,
            "contextBlobSize": binary.nbytes,
            "contextMetadataSize": binary.header_bytes,
            "contextMetadata": {"version": _CONTEXT_BLOB, "info": {"dspArch": about.arch}},
            "numContextTensors": 0,
            "contextTensors": [],
            "numGraphs": len(sizes),
            "graphs": [
                {"version": _GRAPH, "info": _graph(binary.packed(name), of_graph)}
                for name, of_graph in sizes.items()
            ],
            "socModel": about.soc_model,
            "platformInfo": _platform(about.cores),
        },
    }


def _graph(graph: PackedGraph, sizes: GraphSizes) -> dict[str, Any]:
    about, ids = graph.info(), graph.tensor_ids
    return {
        "graphName": graph.name,
        "numGraphInputs": len(about.inputs),
        "graphInputs": [_tensor(spec, ids) for spec in about.inputs],
        "numGraphOutputs": len(about.outputs),
        "graphOutputs": [_tensor(spec, ids) for spec in about.outputs],
        "numUpdateableTensors": len(about.updateables),
        "updateableTensors": [_tensor(spec, ids) for spec in about.updateables],
        "graphBlobInfoSize": _GRAPH_BLOB_BYTES,
        "graphBlobInfo": {
            "version": _GRAPH_BLOB,
            "info": {
                "spillFillBufferSize": graph.spill_fill_bytes,
                "vtcmSize": sizes.vtcm,
                "optimizationLevel": about.options.optimization_level,
                "htpDlbc": int(about.options.dlbc),
                "numHvxThreads": about.hvx_threads,
            },
        },
        "graphBlobInfoV2": {
            "nativeKChannelSize": NATIVE_K,
            "nativeVChannelSize": NATIVE_V,
            "isSafeShareIO": False,
            "ioTensorSize": sizes.io,
            "opDataSize": sizes.op_data,
            "constSize": sizes.constants,
            "ddrTensorSize": 0,
            "sharedWeightsSize": sizes.shared_weights,
        },
        "startOpIndex": 0,
        "endOpIndex": 0,
    }


def _tensor(spec: TensorSpec, ids: dict[str, int]) -> dict[str, Any]:
    return {
        "version": "QNN_TENSOR_VERSION_2",
        "info": {
            "id": ids.get(spec.name, 0),
            "name": spec.name,
            "type": f"QNN_TENSOR_TYPE_{TensorKind(spec.kind).name}",
            "dataFormat": spec.data_format.qnn_name,
            "dataType": spec.dtype.qnn_name,
            "quantizeParams": _encoding(spec),
            "rank": len(spec.shape),
            "dimensions": list(spec.shape),
            "isDynamicDimensions": list(spec.free) if spec.is_dynamic else [],
            "memType": "QNN_TENSORMEMTYPE_RAW",
        },
    }


def _encoding(spec: TensorSpec) -> dict[str, Any]:
    quant = spec.quant
    if isinstance(quant, ScaleOffset):
        return {
            "definition": "QNN_DEFINITION_DEFINED",
            "quantizationEncoding": "QNN_QUANTIZATION_ENCODING_SCALE_OFFSET",
            "scaleOffset": {"scale": quant.scale, "offset": quant.offset},
        }
    if isinstance(quant, AxisScaleOffset):
        pairs = zip(quant.scales, quant.offsets, strict=True)
        return {
            "definition": "QNN_DEFINITION_DEFINED",
            "quantizationEncoding": "QNN_QUANTIZATION_ENCODING_AXIS_SCALE_OFFSET",
            "axisScaleOffset": {
                "axis": quant.axis,
                "numScaleOffsets": len(quant.scales),
                "scaleOffset": [{"scale": scale, "offset": offset} for scale, offset in pairs],
            },
        }
    return {
        "definition": "QNN_DEFINITION_UNDEFINED",
        "quantizationEncoding": "QNN_QUANTIZATION_ENCODING_UNDEFINED",
    }


def _platform(cores: int) -> dict[str, Any]:
    core = "QNN_DEVICE_CORE_INFO_VERSION_1"
    listed = [{"version": core, "info": {"coreId": number, "coreType": 0}} for number in range(cores)]
    device = {"deviceId": 0, "deviceType": 0, "numCores": cores, "cores": listed}
    devices = [{"version": "QNN_DEVICE_HARDWARE_DEVICE_INFO_VERSION_1", "info": device}] if cores else []
    return {
        "version": "QNN_DEVICE_PLATFORM_INFO_VERSION_1",
        "info": {"numHwDevices": len(devices), "hwDevices": devices},
    }
