"""The kernels of a program in numbers: elements, products, and how much of the units' blocks they fill.

The HMX works on blocks of 32 channels and of 8 by 8 pixels (8 by 4 for two bytes); a block that is only partly
filled is computed all the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openhtp.core.enumerations import DataFormat
from openhtp.core.opcall import MATRIX_KINDS, MOVES_NOTHING, OpCall
from openhtp.core.precision import FloatPrecision, NumberFormat, precision_of
from openhtp.core.tensor import TensorKind
from openhtp.ir.def_use import DefUse
from openhtp.ops import Node, op_of
from openhtp.ops._resolve import is_wide_product
from openhtp.program.htp_program import HtpProgram, Kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSize:
    """One piece of work, in elements and multiply-accumulates; bytes follow from the precision.

    Paddings are ratios of processed to requested elements, for elements of one byte and of two.
    ``precision`` is that of the tensors, None where they are integers. ``stays_float`` is on where a float model's
    kernel is in floats even after quantizing. ``edge_in`` and ``edge_out`` count
    elements that the client wrote or will read. ``calibrated`` is off where the kind is a guess, as no published
    network has the op.
    ``reads`` has the indices of earlier kernels whose results it needs. A mere change of shape makes nothing, so
    its readers refer to the kernel that made the data. ``strips`` counts the pieces that its ops can be computed
    in.
    ``matrices`` counts products of their own: pairs of computed matrices, or the groups of a convolution.
    ``sloped`` counts elements of a matrix op's result that a PReLU of the same kernel multiplies by its slopes.
    ``scalar_ops`` counts additions of an average over a window that the vector unit has no way for in 8 bits.
    ``wide_product`` is on where both factors have 16 bits. ``retiled`` counts elements of a flat KV cache that are
    put into the HMX's layout first (``_retiled_elements``).
    """

    name: str
    op: str
    kind: str
    nodes: tuple[str, ...] = ()
    read: int = 0
    written: int = 0
    weights: int = 0
    macs: int = 0
    taps: int = 1
    edge_in: int = 0
    edge_out: int = 0
    packed: int = 0
    sloped: int = 0
    matrices: int = 1
    planes: int = 1
    vector_padding: tuple[float, float] = (1.0, 1.0)
    read_padding: tuple[float, float] = (1.0, 1.0)
    row_padding: tuple[float, float] = (1.0, 1.0)
    channel_padding: float = 1.0
    precision: NumberFormat | None = None
    stays_float: bool = False
    calibrated: bool = True
    reads: tuple[int, ...] = ()
    strips: int = 1
    wide_product: bool = False
    retiled: int = 0
    scalar_ops: int = 0

    @property
    def edge(self) -> int:
        """Elements that the client wrote or will read."""
        return self.edge_in + self.edge_out


def batched(kernel: KernelSize, count: int) -> KernelSize:
    """The kernel on ``count`` inputs at once, which share the weights."""
    grown = {name: getattr(kernel, name) * count for name in _WITH_BATCH}
    return dataclasses.replace(kernel, **grown)


_WITH_BATCH = (
    "read",
    "written",
    "macs",
    "edge_in",
    "edge_out",
    "packed",
    "sloped",
    "matrices",
    "strips",
    "retiled",
    "scalar_ops",
)


def sizes_of(program: HtpProgram) -> tuple[KernelSize, ...]:
    """The kernels of a program, in running order."""
    makers: dict[str, tuple[int, ...]] = {}
    retiled = _retiled_elements(program)
    floats = {node.name for node in program.source.nodes if node.stays_float}
    sizes = []
    for index, kernel in enumerate(program.kernels):
        reads = tuple(dict.fromkeys(maker for name in kernel.inputs for maker in makers.get(name, ())))
        makers.update(dict.fromkeys(kernel.outputs, reads if kernel.kind == MOVES_NOTHING else (index,)))
        stays_float = not floats.isdisjoint(kernel.sources)
        sizes.append(_size(kernel, program, reads, retiled.get(kernel.name, 0), stays_float=stays_float))
    return tuple(sizes)


def _size(
    kernel: Kernel, program: HtpProgram, reads: tuple[int, ...], retiled: int, *, stays_float: bool
) -> KernelSize:
    """The size of a kernel. Its first op decides what is read and computed; the other ops use that op's result."""
    statics = program.statics
    work, call = kernel.nodes[0].work, program.source.call(kernel.nodes[0])
    written = tuple(program.tensors[name] for name in kernel.outputs)
    activations = [spec for spec in call.inputs if spec is not None and spec.name not in statics]
    constants = [spec for spec in call.inputs if spec is not None and spec.name in statics]
    elements = sum(spec.elements for spec in written)
    # Of a table, only the rows that are looked up are read.
    weights = elements if call.op == "Gather" and constants else sum(spec.elements for spec in constants)
    calibrated = kernel.kind is not None
    kind = kernel.kind or ("fully_connected" if work.macs else "unary")
    unit_size = _unit_size(kind, call, work.macs, statics)
    if not calibrated:
        unit_size["macs"] = work.macs
    nodes = [program.source.resolved(node) for node in kernel.nodes]
    first = nodes[0]
    precision = precision_of((*activations, *written))
    if op_of(first).own is not None:
        # Bytes that an operator of a package declares beyond its tensors come from DDR, like weights.
        own_bytes = sum(spec.nbytes for spec in (*activations, *constants, *written))
        further = max(0, work.bytes_read + work.bytes_written - own_bytes)
        weights += further // (1 if precision is None else precision.weight_bytes)
    return KernelSize(
        name=kernel.name,
        op=kernel.op,
        kind=kind,
        nodes=kernel.sources,
        read=sum(spec.elements for spec in activations),
        written=elements if calibrated else max(elements, work.vector_ops // 8),
        weights=weights,
        edge_in=sum(spec.elements for spec in activations if spec.kind.is_input),
        edge_out=sum(spec.elements for spec in written if spec.kind.is_output),
        vector_padding=_vector_padding(tuple(spec.shape for spec in written)),
        read_padding=_vector_padding(tuple(spec.shape for spec in activations)),
        sloped=elements if kind in MATRIX_KINDS and _has_slopes(kernel) else 0,
        precision=precision,
        stays_float=stays_float,
        calibrated=calibrated,
        reads=reads,
        strips=min(map(strips_of, nodes)),
        wide_product=is_wide_product(op_of(first), first),
        retiled=retiled,
        **unit_size,
    )


def _has_slopes(kernel: Kernel) -> bool:
    """Whether a PReLU runs in one piece with its input. There a clamp costs nothing, but slopes do."""
    return any(op_of(node).kind == "prelu" for node in kernel.nodes[1:])


# Sizes as the units see them.


_CHANNELS = 32
_SIDE = 8
_WIDTHS = (8, 4)
_MATRIX_ROWS = (64, 32)
_SHALLOW = 32
_MOST_TAPS = 25

Shape = tuple[int, ...]
_CONVOLUTIONS = frozenset({"conv", "dilated", "stem", "group", "conv3d"})


def _unit_size(kind: str, call: OpCall, macs: int, statics: Collection[str]) -> dict[str, Any]:
    """The work of a matrix or window op for its units, as fields of ``KernelSize``."""
    if call.op in ("FullyConnected", "MatMul"):
        return _product_size(call, macs, statics)
    if kind in _CONVOLUTIONS:
        return _conv_size(kind, call, macs)
    if kind == "depthwise":
        weight = call.inputs[1]
        return {"macs": macs, "taps": 1 if weight is None else math.prod(weight.shape[:-1])}
    if kind == "pool":
        return _pool_size(call)
    return {}


def _pool_size(call: OpCall) -> dict[str, Any]:
    window = call.params.get("filter_size")
    taps = 1 if window is None else int(np.prod(window))
    written = call.outputs[0]
    # Published times of 8-bit networks with such averages are tens of milliseconds longer than their other ops
    # explain. An average of the whole image is a reduction, and quick.
    scalar = call.op == "PoolAvg2d" and taps >= _MOST_TAPS and math.prod(written.shape[1:-1]) > 1
    return {"taps": min(_MOST_TAPS, taps), "scalar_ops": taps * written.elements if scalar else 0}


def _vector_padding(shapes: tuple[Shape, ...]) -> tuple[float, float]:
    """How much larger tensors are in blocks than by count, for elements of one byte and of two."""
    elements = max(1, sum(math.prod(shape) for shape in shapes))
    one, two = (sum(_in_blocks(shape, width) for shape in shapes) / elements for width in _WIDTHS)
    return one, two


def _in_blocks(shape: Shape, width: int) -> int:
    *front, high, wide, deep = (1, 1, 1, *shape) if len(shape) < 3 else (1, *shape)
    # A tensor that is one pixel high or wide is laid out as rows of a matrix, and fills its blocks.
    flat = 1 in (high, wide)
    rows = _round_up(high * wide, width) if flat else _round_up(high, _SIDE) * _round_up(wide, width)
    return math.prod(front) * rows * _round_up(deep, _CHANNELS)


def _conv_size(kind: str, call: OpCall, macs: int) -> dict[str, Any]:
    weight = call.inputs[1]
    source = call.inputs[0]
    if weight is None or source is None:
        return {"macs": macs}
    image = (source if call.op.startswith("Transpose") else call.outputs[0]).shape
    groups = int(call.params.get("group", 1))
    depth = source.shape[-1] // groups
    outputs = call.outputs[0].shape[-1]
    taps = math.prod(weight.shape[:-2])
    # Few channels leave most of a block empty, so pixels of the window are packed into it.
    block = _round_up(depth, _CHANNELS) * taps if depth >= _SHALLOW else _round_up(depth * taps, _CHANNELS)
    high, wide = (1, 1, *image[1:-1])[-2:]
    # A single row of pixels is computed as rows of a matrix.
    one, two = (
        _round_up(wide, _SIDE * width) / wide
        if high == 1
        else _round_up(high, _SIDE) * _round_up(wide, width) / (high * wide)
        for width in _WIDTHS
    )
    return {
        "macs": macs,
        "taps": taps,
        "matrices": groups if kind == "group" else 1,
        "planes": weight.shape[0] if len(weight.shape) > 4 else 1,
        "packed": math.prod(image[:-1]) * taps * depth if kind == "stem" else 0,
        "row_padding": (one, two),
        "channel_padding": _round_up(outputs, _CHANNELS) * block / (outputs * depth * taps),
    }


def _product_size(call: OpCall, macs: int, statics: Collection[str]) -> dict[str, Any]:
    shape = call.outputs[0].shape
    columns = shape[-1]
    whole = call.op == "FullyConnected" or len(shape) < 2 or _is_one_matrix(call, statics)
    rows = math.prod(shape[:-1]) if whole else shape[-2]
    depth = max(1, macs // max(1, math.prod(shape)))
    one, two = (_round_up(rows, block) / rows for block in _MATRIX_ROWS)
    return {
        "macs": macs,
        "matrices": 1 if whole else math.prod(shape[:-2]),
        "row_padding": (one, two),
        "channel_padding": _round_up(depth, _CHANNELS) * _round_up(columns, _CHANNELS) / (depth * columns),
    }


def _is_one_matrix(call: OpCall, statics: Collection[str]) -> bool:
    """Whether the right side is one constant matrix, so that all rows of the left side are rows of one product."""
    right = call.inputs[1]
    turned = bool(call.params.get("transpose_in0", False))
    return right is not None and not turned and right.name in statics and math.prod(right.shape[:-2]) == 1


def _round_up(number: int, block: int) -> int:
    return -(-number // block) * block


# The number of pieces that an op can be computed in, by its own tile rule.
#
# Pieces are strips of eight rows of pixels (the height of the units' blocks) or blocks of 32 channels. Tensors
# that are no pictures are cut into 32 rows. An op whose rule allows none of these cuts is computed whole.


_PIXEL_ROWS = 8
_BLOCK = 32
_PICTURE_RANK = 4
_ROWS = 1


def strips_of(node: Node) -> int:
    """The most pieces that the op's result may be made in, along one axis."""
    shape = node.outputs[0].shape
    rank = len(shape)
    high = {rank - 1: _BLOCK, rank - 2: _BLOCK if rank < 4 else _PIXEL_ROWS, rank - 3: _PIXEL_ROWS}
    cuttable = (axis.axis for axis in op_of(node).tile(node))
    return max((-(-shape[axis] // high[axis]) for axis in cuttable if axis in high), default=1)


def row_ends(node: Node, tiles: int) -> tuple[int, ...]:
    """The rows at which all tiles but the last end. There are about ``tiles`` of them, each of whole strips."""
    shape = node.outputs[0].shape
    if len(shape) != _PICTURE_RANK or all(axis.axis != _ROWS for axis in op_of(node).tile(node)):
        return ()
    strips = -(-shape[_ROWS] // _PIXEL_ROWS)
    high = -(-strips // min(tiles, strips)) * _PIXEL_ROWS
    return tuple(range(high, shape[_ROWS], high))


def usual_formats(kernels: Sequence[KernelSize]) -> list[NumberFormat]:
    """The format of every kernel; kernels of integers count as the rest does."""
    known = [kernel.precision for kernel in kernels if kernel.precision is not None]
    usual = most_common(known) if known else NumberFormat.FLOAT
    return [kernel.precision or usual for kernel in kernels]


def most_common(formats: Sequence[NumberFormat]) -> NumberFormat:
    """The format that most kernels have, which is called that of the network."""
    return max(NumberFormat, key=lambda each: sum(form is each for form in formats))


# Weights as the chip holds them: in blocks of 32 by 32 channels for the matrix unit, and with every second pixel
# moved by one for depthwise windows.


_HALF_BYTES = 2
_NARROW = 16
_PER_DEPTHWISE_CHANNEL = 11


def weights_fill(program: HtpProgram) -> int:
    """Bytes by which weights of half precision are larger on the chip than by count; 0 for other precisions."""
    if program.options.precision is not FloatPrecision.FLOAT16:
        return 0
    filled: dict[str, int] = {}
    for kernel in program.kernels:
        call = program.source.call(kernel.nodes[0])
        weight = call.inputs[1] if len(call.inputs) > 1 else None
        if weight is not None and weight.name in program.statics and weight.dtype.is_float and weight.rank > 1:
            more = _filled_elements(kernel.kind or "", call, weight.shape) - weight.elements
            filled[weight.name] = max(0, _HALF_BYTES * more)
            if kernel.kind == "depthwise":
                filled[weight.name] += _PER_DEPTHWISE_CHANNEL * weight.shape[-1]
    return sum(filled.values())


def _filled_elements(kind: str, call: OpCall, shape: Shape) -> int:
    """Elements of a weight in blocks. Other constants are as large as by count."""
    *front, depth, outputs = shape
    taps = math.prod(front)
    if kind == "depthwise":
        return 2 * math.prod(shape)
    if kind == "stem":
        return _round_up(taps * depth, _CHANNELS) * _in_channels(outputs)
    if kind == "group":
        groups = int(call.params.get("group", 1))
        # Small groups lie in one block side by side, with zeros between them.
        if depth <= _CHANNELS and depth * groups == outputs:
            return taps * _CHANNELS * _round_up(outputs, _CHANNELS)
        return taps * groups * _round_up(depth, _CHANNELS) * _round_up(outputs // groups, _CHANNELS)
    if kind in _CONVOLUTIONS or kind == "fully_connected":
        return taps * _in_channels(depth) * _in_channels(outputs)
    return math.prod(shape)


def _in_channels(count: int) -> int:
    return _round_up(count, _NARROW if count <= _NARROW else _CHANNELS)


# KV caches that lie flat. The HMX wants the second factor of a product in tiles. A native cache is kept like that
# by the client; a flat one is brought into tiles in every execution, all of its context, whatever part of it is
# valid.


_JOINS = ("ScatterElements", "Concat")
_CACHE_RANK = 4


def _retiled_elements(program: HtpProgram) -> dict[str, int]:
    """Elements of a flat cache that each product puts into tiles, by the kernel's name."""
    if not any(_may_be_cache(program, spec.name) for spec in program.inputs):
        return {}
    uses = program.def_use()
    retiled = {}
    for kernel in program.kernels:
        if kernel.op == "MatMul" and (factor := kernel.nodes[0].inputs[1]) is not None:
            cache = _cache_behind(program, uses, factor)
            if cache is not None and program.tensors[cache].data_format is not DataFormat.HMX_WEIGHT_LAYOUT:
                retiled[kernel.name] = program.tensors[factor].elements
    return retiled


def _may_be_cache(program: HtpProgram, name: str) -> bool:
    spec = program.tensors[name]
    return spec.kind is TensorKind.APP_WRITE and spec.rank == _CACHE_RANK


def _cache_behind(program: HtpProgram, uses: DefUse[Kernel], name: str) -> str | None:
    """The client's tensor into which new tokens were put to make this one."""
    join = uses.maker(_unformed(uses, name))
    if join is None or join.op not in _JOINS:
        return None
    # New tokens may come before or after those of the cache.
    roots = (_unformed(uses, each) for each in join.inputs)
    return next((root for root in roots if _may_be_cache(program, root)), None)


def _unformed(uses: DefUse[Kernel], name: str) -> str:
    """The tensor that this one is another form, or a head, of."""
    while (maker := uses.maker(name)) is not None and maker.op not in _JOINS and op_of(maker.nodes[0]).moves_only:
        name = maker.inputs[0]
    return name
