"""libQnnSystem: the content of a context binary, the memory of a tensor, and events written to a file."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openhtp.abi import memory
from openhtp.abi.numbers import BACKEND_ID_HTP
from openhtp.abi.reading import spec_of
from openhtp.abi.structs import struct
from openhtp.abi.writing import tensor_struct
from openhtp.capi import handles, identity
from openhtp.capi.client_memory import ClientMemory
from openhtp.capi.entries import answers
from openhtp.capi.handles import HandleEntry
from openhtp.core import status as st
from openhtp.core.errors import BadBinary, InvalidArgument
from openhtp.program.binary import BinaryInfo, ContextBinary, open_binary
from openhtp.program.packed import PackedGraph
from openhtp.program.sections import SECTION_HEAD, is_section, section_graphs
from openhtp.report.context_binary import NATIVE_K, NATIVE_V, GraphSizes, graph_sizes

_VERSION_3 = 3


_FILE = 1
_EXTENDED = 1
_MOST_EVENTS = 1 << 20
_DEEPEST = 16


class SystemHeld(HandleEntry):
    """A system context, which keeps the descriptions that were read from a binary."""

    word, invalid = "system context", st.QNN_SYSTEM_CONTEXT_ERROR_INVALID_HANDLE


@answers("systemContextCreate")
def system_context_create(out: int) -> None:
    """Make a system context, which reads binaries."""
    handles.require_place(out, "system context")
    handles.give(out, SystemHeld())


@answers("systemContextGetBinaryInfo")
def system_context_get_binary_info(context: int, binary: int, size: int, out: int, out_size: int) -> None:
    """Describe a binary, and give the size of that description."""
    entry = handles.find(SystemHeld, context)
    handles.require_place(out, "binary info")
    handles.require_place(out_size, "size of the binary info")
    info = _describe(entry, binary, size)
    memory.write_number(out, ctypes.addressof(info))
    memory.write_number(out_size, ctypes.sizeof(info))


@answers("systemContextGetMetaData")
def system_context_get_meta_data(context: int, binary: int, size: int, out: int) -> None:
    """What a binary holds."""
    entry = handles.find(SystemHeld, context)
    handles.require_place(out, "binary info")
    memory.write_number(out, ctypes.addressof(_describe(entry, binary, size)))


@answers("systemContextFree")
def system_context_free(context: int) -> None:
    """Forget what was read."""
    handles.remove(handles.find(SystemHeld, context))


def _describe(entry: SystemHeld, address: int, size: int) -> Any:
    keep: list[Any] = []
    source = ClientMemory(address, size, "the binary")
    try:
        if size and is_section(source.read(0, min(size, SECTION_HEAD))):
            info = _section_info(section_graphs(bytes(source.read(0, size))), size, keep)
        else:
            info = _binary_info(open_binary(source), size, keep)
    except BadBinary as error:
        error.status = st.QNN_SYSTEM_CONTEXT_ERROR_MALFORMED_BINARY
        raise
    entry.keep.append((info, keep))
    return info


def _binary_info(binary: ContextBinary, size: int, keep: list[Any]) -> Any:
    graphs = (struct("GraphInfo") * max(1, len(binary.graph_names)))()
    for description, (name, sizes) in zip(graphs, graph_sizes(binary).items(), strict=False):
        _fill_graph(description, binary.packed(name), sizes, keep)
    return _info(binary.info, graphs, len(binary.graph_names), size, keep)


def _info(about: BinaryInfo, graphs: Any, count: int, size: int, keep: list[Any]) -> Any:
    info: Any = struct("BinaryInfoV3")(version=_VERSION_3, backend_id=BACKEND_ID_HTP)
    info.build_id = (about.build_id or identity.build_id()).encode()
    info.core, info.backend = identity.core_api(), identity.htp_api()
    info.soc_version, info.blob_version = (about.soc or "").encode(), identity.BLOB_VERSION
    info.blob_size, info.soc_model = size, about.soc_model or 0
    info.num_graphs, info.graphs = count, ctypes.addressof(graphs)
    keep.append(graphs)
    return info


def _section_info(names: Sequence[str], size: int, keep: list[Any]) -> Any:
    """The content of a binary section: the names of the graphs that it can be applied to."""
    graphs = (struct("GraphInfo") * len(names))()
    for described, name in zip(graphs, names, strict=True):
        text = name.encode()
        keep.append(text)
        described.version, described.name = _VERSION_3, text
    return _info(BinaryInfo(), graphs, len(names), size, keep)


def _fill_graph(info: Any, packed: PackedGraph, sizes: GraphSizes, keep: list[Any]) -> None:
    about, ids = packed.info(), packed.tensor_ids
    text = packed.name.encode()
    keep.append(text)
    info.version, info.name = _VERSION_3, text
    for count, field, specs in (("num_inputs", "inputs", about.inputs), ("num_outputs", "outputs", about.outputs)):
        tensors = (struct("Tensor") * max(1, len(specs)))()
        for number, spec in enumerate(specs):
            tensor = tensor_struct(spec, None, keep)
            tensor.id = ids.get(spec.name, 0)
            tensors[number] = tensor
        keep.append(tensors)
        setattr(info, count, len(specs))
        setattr(info, field, ctypes.addressof(tensors))
    blob = struct("GraphBlobInfo")(
        version=1,
        spill_fill=packed.spill_fill_bytes,
        vtcm=sizes.vtcm,
        optimization=about.options.optimization_level,
        dlbc=about.options.dlbc,
        hvx_threads=about.hvx_threads,
        second_version=2,
        native_k=NATIVE_K,
        native_v=NATIVE_V,
        io=sizes.io,
        op_data=sizes.op_data,
        constants=sizes.constants,
        shared_weights=sizes.shared_weights,
    )
    keep.append(blob)
    info.blob_size, info.blob = ctypes.sizeof(blob), ctypes.addressof(blob)


@answers("systemTensorGetMemoryFootprint")
def system_tensor_get_memory_footprint(tensor: int, out: int) -> None:
    """Bytes that a tensor's data take."""
    handles.require_place(out, "footprint")
    content = memory.structure(struct("Tensor"), tensor, "the tensor")
    memory.write_number(out, spec_of(content).nbytes)


class TargetHeld(HandleEntry):
    """A file that events go to, a line of JSON for each call that was profiled."""

    word, invalid = "serialization target", st.QNN_SYSTEM_CONTEXT_ERROR_INVALID_HANDLE

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path


@answers("systemProfileCreateSerializationTarget")
def system_profile_create_serialization_target(target: int, configs: int, count: int, out: int) -> None:
    """Name the file for events; the first events create it."""
    handles.require_place(out, "serialization target")
    kind, name_at, folder_at = memory.array(ctypes.c_uint64, 3, target, "the target")
    if kind & 0xFFFFFFFF != _FILE:
        raise InvalidArgument(f"a serialization target of kind {kind & 0xFFFFFFFF}; expected a file (1)")
    name, folder = memory.text(name_at, "the file's name"), memory.text(folder_at, "the file's folder")
    if not name:
        raise InvalidArgument("the serialization target has no file name")
    handles.give(out, TargetHeld(Path(folder) / name if folder else Path(name)))


@answers("systemProfileSerializeEventData")
def system_profile_serialize_event_data(target: int, data: int, count: int) -> None:
    """Write the events of some calls."""
    entry = handles.find(TargetHeld, target)
    if count > _MOST_EVENTS:
        raise InvalidArgument(f"{count} calls; expected at most {_MOST_EVENTS}")
    lines: list[str] = []
    for address in memory.array(ctypes.c_void_p, count, data, "the profiled calls") if count else ():
        call = memory.structure(struct("ProfileData"), address or 0, "a profiled call")
        lines.append(
            json.dumps(
                {
                    "graph": memory.text(call.graph, "the graph's name"),
                    "method": call.method,
                    "start_us": call.start_us,
                    "stop_us": call.stop_us,
                    "events": _events(call.events, call.num_events, 0),
                }
            )
        )
    try:
        with entry.path.open("a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
    except OSError as error:
        raise InvalidArgument(f"{str(entry.path)!r} cannot be written: {error.strerror}") from error


def _events(address: int, count: int, depth: int) -> list[dict[str, Any]]:
    if count > _MOST_EVENTS or depth > _DEEPEST:
        raise InvalidArgument(f"{count} events, {depth} levels deep; expected fewer")
    if not count:
        return []
    events = []
    for event in memory.array(struct("ProfileEvent"), count, address, "events"):
        body = event.of.extended if event.kind == _EXTENDED else event.of.plain
        value = body.value.raw.align if event.kind == _EXTENDED else body.value
        events.append(
            {
                "type": body.type,
                "unit": body.unit,
                "value": value,
                "events": _events(event.sub_events, event.num_sub_events, depth + 1),
            }
        )
    return events


@answers("systemProfileFreeSerializationTarget")
def system_profile_free_serialization_target(target: int) -> None:
    """Forget the file for events."""
    handles.remove(handles.find(TargetHeld, target))
