"""The header of a context binary as typed records, and their conversion to and from programs.

msgspec checks types and ranges while decoding, so no value here is of the wrong kind. References and sizes, which
msgspec cannot check, are checked here. Unknown fields are ignored, so that a later version may add some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.enumerations import DataFormat
from openhtp.core.errors import BadBinary
from openhtp.core.quant import AxisScaleOffset, Encoding, ScaleOffset
from openhtp.core.tensor import MAX_RANK, TensorKind, TensorSpec
from openhtp.ir.graph import QnnNode
from openhtp.options import GRAPH, OptionValues
from openhtp.program.qnn_program import QnnProgram

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Dim = Annotated[int, msgspec.Meta(ge=1, lt=1 << 40)]
Dims = Annotated[list[Dim], msgspec.Meta(max_length=MAX_RANK)]
Name = Annotated[str, msgspec.Meta(max_length=4096)]
OptionValue = bool | int | float | str | None


class Scalar(msgspec.Struct, frozen=True, tag="s"):
    """A whole-tensor encoding."""

    scale: float
    offset: int


class PerAxis(msgspec.Struct, frozen=True, tag="a"):
    """A per-channel encoding.

    ``scales`` are float32, or float64 where float32 would not be exact. ``offsets`` are int32, int64 where
    necessary, and empty where all are 0. The tensor's shape gives their number.
    """

    axis: Count
    scales: bytes
    offsets: bytes = b""


_StoredDims = Annotated[list[Dim], msgspec.Meta(max_length=2 * MAX_RANK)]
_StoredAxes = Annotated[list[Count], msgspec.Meta(max_length=2 * MAX_RANK)]


class Arrangement(msgspec.Struct, frozen=True, omit_defaults=True):
    """How stored data becomes a tensor's: take it in ``shape``, put its axes in ``order``, flip the sign bits.

    Then each number in ``joined`` tells how many axes in a row become one (if it is empty, all stay apart). The
    tensor is the beginning of the result: an engine may want channels in blocks, the last of them filled up. So
    weights are stored once, as an engine wants them, and are still those of the program to the bit.
    """

    shape: _StoredDims
    order: _StoredAxes
    flipped: bool = False
    joined: _StoredAxes = []


class TensorRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tensor; if it is static, ``blob`` is the number of its data, or ``data`` holds it if it is small.

    ``stored`` says how the data lies in the blob, if it is rearranged. ``update`` is where the data of an
    updateable tensor begins in the graph's section of these.
    """

    name: Name
    shape: Dims
    dtype: int
    kind: int
    quant: Scalar | PerAxis | None = None
    dynamic: list[bool] = []
    blob: Count | None = None
    sparse_elements: Count | None = None
    stored: Arrangement | None = None
    data_format: int = 0
    data: bytes | None = None
    update: Count | None = None


class ParamTensor(msgspec.Struct, frozen=True, tag="t"):
    """A tensor parameter, data inline."""

    dtype: str
    shape: Annotated[list[Count], msgspec.Meta(max_length=MAX_RANK)]
    data: bytes


class ParamValue(msgspec.Struct, frozen=True, tag="v"):
    """A scalar parameter."""

    value: bool | int | float | str


class NodeRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node; tensors by their number in the program."""

    op: Name
    name: Name
    inputs: list[Count | None]
    outputs: list[Count]
    params: dict[Name, ParamTensor | ParamValue] = {}
    package: Name = "qti.aisw"
    origin: str = ""


class ProgramRecord(msgspec.Struct, frozen=True):
    """A program, in a section of its own, without its data. Blobs are numbered within the graph."""

    tensors: list[TensorRecord]
    nodes: list[NodeRecord]


class EndsRecord(msgspec.Struct, frozen=True):
    """A graph's inputs, outputs and options, known without its program, which must agree.

    Options are by name, and checked against their table when they are used.
    """

    name: Name
    inputs: list[TensorRecord]
    outputs: list[TensorRecord]
    options: dict[Name, OptionValue]
    updateables: list[TensorRecord] = []


class GraphRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A graph in the header: its ends, and the file's sections that hold the rest.

    ``checksum`` covers the checksums of its sections, in order, so that no section can stand in for another.
    ``program`` is a ``ProgramRecord``. ``data`` are its blobs, by their number in the graph. ``prepared`` is an
    engine's prepared form of the program, which saves that work. Only the engine can read it, and trusts it only
    under its own ``seal``. ``updates`` has the data of its updateable tensors, or of those of another graph that
    it shares memory with (``foreign_updates``). ``chip`` is the chip's program. ``ids`` are those of inputs, then
    outputs. ``static_bytes``, ``spill_fill_bytes`` and ``vtcm_peak_bytes`` help to make room before the graph is
    loaded; the latter two are unknown for a graph that no device compiled. ``packages`` are the versions of the
    op packages of one's own that its nodes come from.
    """

    ends: EndsRecord
    checksum: Count
    program: Count
    data: list[Count]
    prepared: Count | None = None
    seal: bytes = b""
    ids: list[Count] = []
    static_bytes: Count = 0
    spill_fill_bytes: Count = 0
    vtcm_peak_bytes: Count | None = None
    packages: dict[Name, Name] = {}
    updates: Count | None = None
    foreign_updates: bool = False
    chip: Count | None = None


_PARAM_TYPES = {
    np.dtype(code).str: np.dtype(code)
    for code in ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]
}


def record_program(
    program: QnnProgram,
    blobs: Mapping[str, int],
    lies: Mapping[str, Arrangement],
    small: Mapping[str, bytes],
    updates: Mapping[str, int],
) -> ProgramRecord:
    """The program's record; ``blobs`` numbers the data of static tensors, ``lies`` says how it lies there.

    ``small`` has the data of static tensors that are in no blob; ``updates`` says where that of updateable ones
    begins.
    """
    numbers = {name: index for index, name in enumerate(program.tensors)}
    return ProgramRecord(
        tensors=[
            _record_tensor(
                spec,
                blobs.get(spec.name),
                lies.get(spec.name),
                small.get(spec.name),
                updates.get(spec.name),
            )
            for spec in program.tensors.values()
        ],
        nodes=[_record_node(node, numbers) for node in program.nodes],
    )


def record_ends(program: QnnProgram) -> EndsRecord:
    """The program as it looks from outside."""
    return ends_of(program.name, program.inputs, program.outputs, program.options, program.updateables)


def ends_of(
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    options: OptionValues,
    updateables: Sequence[TensorSpec] = (),
) -> EndsRecord:
    """A graph as it looks from outside."""
    return EndsRecord(
        name=name,
        inputs=[_record_tensor(spec) for spec in inputs],
        outputs=[_record_tensor(spec) for spec in outputs],
        options=options.stored(),
        updateables=[_record_tensor(spec) for spec in updateables],
    )


def _record_tensor(
    spec: TensorSpec,
    blob: int | None = None,
    stored: Arrangement | None = None,
    data: bytes | None = None,
    update: int | None = None,
) -> TensorRecord:
    return TensorRecord(
        spec.name,
        list(spec.shape),
        int(spec.dtype),
        int(spec.kind),
        record_encoding(spec.quant),
        list(spec.dynamic),
        blob,
        spec.sparse_elements,
        stored,
        int(spec.data_format),
        data,
        update,
    )


def record_encoding(encoding: Encoding | None) -> Scalar | PerAxis | None:
    """An encoding as it is stored."""
    if isinstance(encoding, AxisScaleOffset):
        offsets = _narrowed(np.array(encoding.offsets, np.int64), np.int32) if any(encoding.offsets) else b""
        return PerAxis(encoding.axis, _narrowed(np.array(encoding.scales, np.float64), np.float32), offsets)
    return None if encoding is None else Scalar(encoding.scale, encoding.offset)


def build_encoding(name: str, shape: Sequence[int], stored: Scalar | PerAxis | None) -> Encoding | None:
    """The encoding of a tensor. Raises BadBinary, or the encoding's own error."""
    if not isinstance(stored, PerAxis):
        return None if stored is None else ScaleOffset(stored.scale, stored.offset)
    count = shape[stored.axis] if stored.axis < len(shape) else 0
    sizes = 4 * count, 8 * count
    if not count or len(stored.scales) not in sizes or (stored.offsets and len(stored.offsets) not in sizes):
        raise BadBinary(f"tensor {name!r} has a per-axis encoding that does not fit its shape")
    scales = np.frombuffer(stored.scales, f"<f{len(stored.scales) // count}")
    offsets = np.frombuffer(stored.offsets, f"<i{len(stored.offsets) // count or 4}")
    return AxisScaleOffset(stored.axis, tuple(scales.tolist()), tuple(offsets.tolist()))


def _narrowed(values: npt.NDArray[Any], narrow: type[np.generic]) -> bytes:
    """Numbers in as many bytes as they need, little-endian: in the narrow type if it holds all of them."""
    with np.errstate(over="ignore"):
        narrowed = values.astype(narrow)
    stored = narrowed if np.array_equal(narrowed, values) else values
    return stored.astype(stored.dtype.newbyteorder("<")).tobytes()


def _record_node(node: QnnNode, numbers: Mapping[str, int]) -> NodeRecord:
    return NodeRecord(
        op=node.op,
        name=node.name,
        inputs=[None if name is None else numbers[name] for name in node.inputs],
        outputs=[numbers[name] for name in node.outputs],
        params={name: _record_param(value) for name, value in node.params.items() if value is not None},
        package=node.package,
        origin=node.origin,
    )


def _record_param(value: Any) -> ParamTensor | ParamValue:
    if isinstance(value, str):
        return ParamValue(value)
    array = np.asarray(value)
    if array.ndim == 0:
        return ParamValue(array.item())
    return ParamTensor(array.dtype.str, list(array.shape), array.tobytes())


def tensor_specs(record: ProgramRecord) -> dict[str, TensorSpec]:
    """Specs of all tensors, in order. Raises BadBinary or the encoding's own error."""
    specs: dict[str, TensorSpec] = {}
    for tensor in record.tensors:
        if tensor.name in specs:
            raise BadBinary(f"tensor {tensor.name!r} is listed twice")
        specs[tensor.name] = spec = tensor_spec(tensor)
        data_count = sum(place is not None for place in (tensor.blob, tensor.data, tensor.update))
        if data_count != spec.kind.is_static:
            raise BadBinary(
                f"tensor {tensor.name!r} of kind {tensor.kind} has data number {tensor.blob},"
                f" and {0 if tensor.data is None else len(tensor.data)} bytes of its own"
            )
    return specs


def tensor_spec(tensor: TensorRecord) -> TensorSpec:
    """Spec of one tensor."""
    if tensor.dtype not in DType._value2member_map_ or tensor.kind not in TensorKind._value2member_map_:
        raise BadBinary(f"tensor {tensor.name!r} has type {tensor.dtype} or kind {tensor.kind} unknown here")
    if tensor.data_format not in DataFormat._value2member_map_:
        raise BadBinary(f"tensor {tensor.name!r} has data format {tensor.data_format}, unknown here")
    if tensor.dynamic and len(tensor.dynamic) != len(tensor.shape):
        raise BadBinary(f"tensor {tensor.name!r} has {len(tensor.dynamic)} dynamic flags")
    return TensorSpec(
        tensor.name,
        tuple(tensor.shape),
        DType(tensor.dtype),
        build_encoding(tensor.name, tensor.shape, tensor.quant),
        TensorKind(tensor.kind),
        tuple(tensor.dynamic),
        tensor.sparse_elements,
        DataFormat(tensor.data_format),
    )


def build_program(ends: EndsRecord, record: ProgramRecord, statics: Mapping[str, npt.NDArray[Any]]) -> QnnProgram:
    """The program of a record with its static data. Raises BadBinary if its ends differ from ``ends``."""
    specs = tensor_specs(record)
    names = list(specs)
    program = QnnProgram(
        name=ends.name,
        tensors=specs,
        nodes=tuple(_build_node(node, names) for node in record.nodes),
        statics=statics,
        options=build_options(ends),
    )
    built = record_ends(program)
    if (built.inputs, built.outputs, built.updateables) != (ends.inputs, ends.outputs, ends.updateables):
        raise BadBinary(f"the header and the program of graph {ends.name!r} disagree about its inputs or outputs")
    return program


def end_specs(tensors: list[TensorRecord]) -> tuple[TensorSpec, ...]:
    """Specs of inputs, outputs or updateable tensors; the program tells where their data is."""
    return tuple(tensor_spec(tensor) for tensor in tensors)


def build_options(ends: EndsRecord) -> OptionValues:
    """Graph options. Raises InvalidArgument for values that no option takes."""
    return GRAPH.read_stored(ends.options)


def _build_node(node: NodeRecord, names: list[str]) -> QnnNode:
    if any(number >= len(names) for number in (*node.outputs, *(n for n in node.inputs if n is not None))):
        raise BadBinary(f"node {node.name!r} uses a tensor number above {len(names) - 1}")
    return QnnNode(
        op=node.op,
        name=node.name,
        inputs=tuple(None if number is None else names[number] for number in node.inputs),
        outputs=tuple(names[number] for number in node.outputs),
        params={name: _build_param(node.name, value) for name, value in node.params.items()},
        package=node.package,
        origin=node.origin,
    )


def _build_param(where: str, record: ParamTensor | ParamValue) -> Any:
    if isinstance(record, ParamValue):
        return record.value
    dtype = _PARAM_TYPES.get(record.dtype)
    if dtype is None or int(np.prod(record.shape, dtype=object)) * dtype.itemsize != len(record.data):
        raise BadBinary(f"node {where!r} has a parameter of bad type {record.dtype!r} or size")
    return np.frombuffer(record.data, dtype).reshape(record.shape)
