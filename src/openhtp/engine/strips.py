"""A long op computed in strips, so that a program can yield inside it.

In channel-last order, in which 8-bit convolutions are computed, the rows of one image lie one after the other. So
a strip reads a window of the same memory, with the rows that its neighbours read too, and writes its own rows of
the result. In the orders of float convolutions the channels of one image do: a strip reads all of the image and
some of the filters, and writes its own channels. Nothing is copied. A product with constant weights is computed
for some of their columns at a time; the last strip puts the columns together, which takes little beside reading
the weights. A sequence is computed some steps at a time, and the states go from strip to strip. In all of them
every number is computed as it would be in one piece.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from openhtp.engine.onnx_graph import numpy_type
from openhtp.engine.onnx_messages import NodeProto, attribute_value, make_node
from openhtp.ops import TileAxis

_PICTURE_RANK = 4
_ROWS = 1


@dataclass(frozen=True, slots=True)
class RowWindow:
    """Rows of a value that lies in memory whole: where they begin there, and their type and shape."""

    of: str
    begin: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Strip:
    """Nodes that make a part of the result of others.

    They read and write values, and windows on values, which ``windows`` has. ``made`` are the values that are
    complete with this strip. ``filters`` has the parts of constants that are read instead of the whole.
    One session computes all strips that differ only in their number of rows or steps, the sizes of their windows
    along ``axis``; ``called`` has its names for their values.
    """

    nodes: tuple[NodeProto, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    windows: Mapping[str, RowWindow] = field(default_factory=dict)
    filters: Mapping[str, FilterPart] = field(default_factory=dict)
    made: tuple[RowWindow, ...] = ()
    called: Mapping[str, str] = field(default_factory=dict)
    axis: int = 0


@dataclass(frozen=True, slots=True)
class FilterPart:
    """Some of the entries of a constant along one of its axes."""

    of: str
    first: int
    last: int
    axis: int = 0


def is_channel_last(node: NodeProto) -> bool:
    """Whether a node of the optimised model is a convolution in channel-last order."""
    last = next((attribute for attribute in node.attribute if attribute.name == "channels_last"), None)
    return node.op_type == "QLinearConv" and last is not None and bool(last.i)


def can_be_cut(node: NodeProto) -> bool:
    """Whether a node of the optimised model can be computed some rows at a time."""
    needed = {"kernel_shape", "strides", "pads"}
    return is_channel_last(node) and needed <= {attribute.name for attribute in node.attribute}


def cut_into_strips(
    node: NodeProto, source: RowWindow, filters: int, dtype: np.dtype[Any], ends: Sequence[int]
) -> list[Strip] | None:
    """The node as strips that end after these rows of its result. None if it has fewer.

    ``source`` is the whole input. ``filters`` and ``dtype`` are the channels and the type of the result.
    """
    if len(source.shape) != _PICTURE_RANK or source.shape[0] != 1:
        return None
    across, down = _rules(node)
    wide = across.results(source.shape[2])
    high = down.results(source.shape[_ROWS])
    if not ends or ends[-1] >= high:
        return None
    whole = RowWindow(node.output[0], 0, dtype, (1, high, wide, filters))
    by_padding: dict[tuple[int, int], list[tuple[RowWindow, RowWindow]]] = {}
    for first, last in itertools.pairwise((0, *ends, high)):
        begin, end = down.axis.rows(first, last)
        top, bottom = max(0, -begin), max(0, end - source.shape[_ROWS])
        windows = _rows(source, begin + top, end - bottom), _rows(whole, first, last)
        by_padding.setdefault((top, bottom), []).append(windows)
    strips = [strip for padding, windows in by_padding.items() for strip in _strips_alike(node, windows, padding)]
    return _complete(sorted(strips, key=lambda strip: strip.windows[strip.writes[0]].begin), whole)


def _complete(strips: list[Strip], whole: RowWindow) -> list[Strip]:
    """The strips, of which the last says that the result is complete."""
    return [*strips[:-1], dataclasses.replace(strips[-1], made=(*strips[-1].made, whole))]


@dataclass(frozen=True, slots=True)
class _RowRule:
    """The rows that a row of the result reads along one axis, and the padding behind the last."""

    axis: TileAxis
    after: int

    def results(self, size: int) -> int:
        """The number of result rows for ``size`` input rows."""
        return (size + self.axis.before + self.after - self.axis.reach) // self.axis.stride + 1


def _rules(node: NodeProto) -> tuple[_RowRule, _RowRule]:
    """The rules across and down the image."""
    attributes = _attributes(node)
    pads, strides, kernel = attributes["pads"], attributes["strides"], attributes["kernel_shape"]
    dilations = attributes.get("dilations", [1, 1])
    down, across = (
        _RowRule(
            TileAxis(
                axis=_ROWS + axis,
                inputs=(_ROWS + axis,),
                reach=dilations[axis] * (kernel[axis] - 1) + 1,
                stride=strides[axis],
                before=pads[axis],
            ),
            after=pads[2 + axis],
        )
        for axis in (0, 1)
    )
    return across, down


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {attribute.name: attribute_value(attribute) for attribute in node.attribute}


def _rows(whole: RowWindow, first: int, last: int) -> RowWindow:
    row_bytes = math.prod(whole.shape[_ROWS + 1 :]) * whole.dtype.itemsize
    shape = (1, last - first, *whole.shape[_ROWS + 1 :])
    return RowWindow(whole.of, whole.begin + first * row_bytes, whole.dtype, shape)


def _strips_alike(
    node: NodeProto, windows: Sequence[tuple[RowWindow, RowWindow]], padding: tuple[int, int]
) -> list[Strip]:
    """Strips with this padding, each of what it reads and what it writes. Several have one session."""
    names = [(window_name(read), window_name(written)) for read, written in windows]
    own = names[0]
    if len(windows) > 1:
        own = f"{node.output[0]}/rows read@{padding}", f"{node.output[0]}/rows@{padding}"
    strip = NodeProto()
    strip.CopyFrom(node)
    pads = next(attribute for attribute in strip.attribute if attribute.name == "pads")
    pads.ints[0], pads.ints[2] = padding
    strip.input[0], strip.output[0] = own
    strip.name = own[1]
    called = [dict(zip(each, own, strict=True)) if len(windows) > 1 else {} for each in names]
    return [
        Strip((strip,), each[:1], each[1:], dict(zip(each, both, strict=True)), called=own_names, axis=_ROWS)
        for each, both, own_names in zip(names, windows, called, strict=True)
    ]


def window_name(window: RowWindow) -> str:
    """The name under which a session knows a window."""
    return f"{window.of}@{window.begin}+{window.nbytes}"


# Float convolutions, by channels.

# In blocks of so many channels, or of half as many, the runtime keeps images and filters.
CHANNEL_BLOCK = 16
_BLOCKED = "com.microsoft.nchwc"
# Without blocks, as on ARM, a convolution and its activation are an operator of another name.
FLOAT_CONVS = {("", "Conv"), (_BLOCKED, "Conv"), ("com.microsoft", "FusedConv")}
# Operators that may follow inside a strip: rounding a number depends on nothing else.
_ROUNDING = "Cast"
_INPUTS_WITHOUT_SUM = 3


def cut_by_channels(node: NodeProto) -> bool:
    """Whether a node of the optimised model is a float convolution whose channels can be computed in parts."""
    attributes = _attributes(node)
    transposed = (node.domain, node.op_type) == ("", "ConvTranspose")
    needed = {"kernel_shape"} if transposed else {"kernel_shape", "strides", "pads"}
    return (
        (transposed or (node.domain, node.op_type) in FLOAT_CONVS)
        and needed <= attributes.keys()
        and len(node.input) <= _INPUTS_WITHOUT_SUM
        and attributes.get("auto_pad", b"NOTSET") == b"NOTSET"
        and "output_shape" not in attributes
        and attributes.get("group", 1) == 1
    )


def stays_in_strips(head: NodeProto, node: NodeProto) -> bool:
    """Whether a node that only reads results of ``head`` can be computed for a part of them."""
    if node.op_type == "ReorderOutput":
        return not any(attribute.name == "channels_last" and attribute.i for attribute in node.attribute)
    if node.op_type == "QuantizeLinear":  # a float convolution between quantized values
        return bool(head.op_type == "ConvTranspose")
    return bool(node.op_type == _ROUNDING) and head.op_type != "LSTM"


def cut_into_channels(
    nodes: Sequence[NodeProto], source: RowWindow, filters: int, dtype: np.dtype[Any], ends: Sequence[int]
) -> list[Strip] | None:
    """A convolution and what follows it as strips that end after these channels. None if it cannot be cut so.

    ``filters`` is how many the convolution has, those that fill a block up included; ``dtype`` is what it leaves.
    """
    node = nodes[0]
    if len(source.shape) != _PICTURE_RANK or source.shape[0] != 1 or not ends or ends[-1] >= filters:
        return None
    high, wide = _picture(node, source)
    channels = next((_reordered(each) for each in nodes if each.op_type == "ReorderOutput"), filters)
    if channels <= ends[-1]:
        return None
    whole = RowWindow(nodes[-1].output[0], 0, dtype, (1, channels, high, wide))
    axis = 1 if node.op_type == "ConvTranspose" else 0
    strips = []
    for first, last in itertools.pairwise((0, *ends, filters)):
        last_written = min(last, channels)
        written = dataclasses.replace(
            whole, begin=first * high * wide * whole.dtype.itemsize, shape=(1, last_written - first, high, wide)
        )
        parts = {1: FilterPart(node.input[1], first, last, axis)}
        parts |= {number: FilterPart(node.input[number], first, last) for number in range(2, len(node.input))}
        result = window_name(written)
        copies, filter_parts = _copied(nodes, result, parts, first)
        for copy in copies:
            for attribute in copy.attribute:
                if copy.op_type == "ReorderOutput" and attribute.name == "channels":
                    attribute.i = last_written - first
        strips.append(Strip(copies, (node.input[0],), (result,), {result: written}, filter_parts))
    return _complete(strips, whole)


def _copied(
    nodes: Sequence[NodeProto], result: str, parts: Mapping[int, FilterPart], first: int
) -> tuple[tuple[NodeProto, ...], dict[str, FilterPart]]:
    """Nodes, one after the other, that read parts of the first one's constants, by place, and make ``result``."""
    filters: dict[str, FilterPart] = {}
    copies: list[NodeProto] = []
    for number, node in enumerate(nodes):
        copy = NodeProto()
        copy.CopyFrom(node)
        if number == 0:
            for index, part in parts.items():
                name = f"{part.of}[{',' * part.axis}{part.first}:{part.last}]"
                filters[name] = part
                copy.input[index] = name
        else:
            copy.input[0] = copies[-1].output[0]
        copy.output[0] = result if number == len(nodes) - 1 else f"{node.output[0]}@{first}"
        copy.name = copy.output[0]
        copies.append(copy)
    return tuple(copies), filters


def _picture(node: NodeProto, source: RowWindow) -> tuple[int, int]:
    """How high and wide the result of a float convolution is."""
    if node.op_type != "ConvTranspose":
        across, down = _rules(node)
        return down.results(source.shape[2]), across.results(source.shape[3])
    attributes = _attributes(node)
    strides, kernel = attributes.get("strides", [1, 1]), attributes["kernel_shape"]
    more, dilations = attributes.get("output_padding", [0, 0]), attributes.get("dilations", [1, 1])
    pads = attributes.get("pads", [0] * 4)
    high, wide = (
        strides[axis] * (source.shape[2 + axis] - 1)
        + more[axis]
        + dilations[axis] * (kernel[axis] - 1)
        + 1
        - pads[axis]
        - pads[2 + axis]
        for axis in (0, 1)
    )
    return high, wide


def rounded_type(nodes: Sequence[NodeProto]) -> np.dtype[Any]:
    """The type in which the last of these nodes leaves floats."""
    casts = [node for node in nodes if node.op_type == _ROUNDING]
    return numpy_type(casts[-1].attribute[0].i) if casts else np.dtype(np.float32)


def _reordered(node: NodeProto) -> int:
    """How many channels are left when an image leaves its blocks."""
    return next(int(attribute.i) for attribute in node.attribute if attribute.name == "channels")


# Products, by columns of their constant weights.

# Where kernels take their weights, and where constants of one number for each column may be.
_WEIGHTS = {
    ("", "Gemm"): (1, (2,)),
    ("", "MatMul"): (1, ()),
    ("com.microsoft", "FusedMatMul"): (1, ()),
    ("com.microsoft", "QGemm"): (3, (4, 5, 6)),
}
# Columns at whose multiples kernels begin a block.
COLUMN_BLOCK = 64


def weights_of(node: NodeProto) -> int | None:
    """Where a product that can be computed in parts of its columns has its weights; None if it is no such node."""
    place = _WEIGHTS.get((node.domain, node.op_type))
    attributes = _attributes(node)
    if place is None or attributes.get("transBatchA", 0) or attributes.get("transBatchB", 0):
        return None
    return place[0]


def cut_into_columns(
    nodes: Sequence[NodeProto],
    source: RowWindow,
    shapes: Mapping[str, Sequence[int]],
    dtype: np.dtype[Any],
    ends: Sequence[int],
) -> list[Strip] | None:
    """A product and what follows it as strips that end after these columns. None if it cannot be cut so.

    ``shapes`` are those of constants; ``dtype`` is the type of the result.
    """
    node = nodes[0]
    weights, others = _WEIGHTS[node.domain, node.op_type]
    attributes = _attributes(node)
    axis = 0 if attributes.get("transB", 0) else 1
    shape = shapes[node.input[weights]]
    if len(shape) != _MATRIX_RANK or len(source.shape) < _MATRIX_RANK or not ends or ends[-1] >= shape[axis]:
        return None
    columns = shape[axis]
    parted = {weights: axis}
    for place in others:
        if place < len(node.input) and node.input[place]:
            own = shapes.get(node.input[place])
            if own is None or math.prod(own) not in (1, columns) or (own and own[-1] != math.prod(own)):
                return None
            if math.prod(own) == columns:
                parted[place] = len(own) - 1
    *lead, rows, depth = source.shape
    high = depth if attributes.get("transA", 0) else rows
    whole = RowWindow(nodes[-1].output[0], 0, dtype, (*lead, high, columns))
    strips: list[Strip] = []
    pieces: list[RowWindow] = []
    for first, last in itertools.pairwise((0, *ends, columns)):
        name = f"{whole.of}[{first}:{last}]"
        parts = {place: FilterPart(node.input[place], first, last, along) for place, along in parted.items()}
        copies, filters = _copied(nodes, name, parts, first)
        piece = dataclasses.replace(whole, of=name, shape=(*whole.shape[:-1], last - first))
        strips.append(Strip(copies, (node.input[0],), (name,), filters=filters, made=(piece,)))
        pieces.append(piece)
    names = [piece.of for piece in pieces]
    together = make_node("Concat", names, [whole.of], name=whole.of, axis=len(whole.shape) - 1)
    last_strip = dataclasses.replace(
        strips[-1],
        nodes=(*strips[-1].nodes, together),
        reads=(*strips[-1].reads, *names[:-1]),
        writes=(whole.of,),
        made=(whole,),
    )
    return [*strips[:-1], last_strip]


_MATRIX_RANK = 2

# Sequences, by steps.

# Places of an LSTM's inputs.
_LENGTHS, _STATES = 4, (5, 6)


def is_sequence(node: NodeProto) -> bool:
    """Whether a node of the optimised model computes step by step, each from the states after the one before."""
    attributes = _attributes(node)
    return (
        (node.domain, node.op_type) == ("", "LSTM")
        and attributes.get("direction", b"forward") in (b"forward", b"reverse")
        and not attributes.get("layout", 0)
        and len(node.input) > _STATES[-1]
        and all(node.input[place] for place in _STATES)
        and not node.input[_LENGTHS]
        and bool(node.output[0])
    )


def state_names(node: NodeProto, part: int) -> tuple[str, str]:
    """The names of the states before a part of a sequence."""
    return f"{node.output[0]}/hidden{part}", f"{node.output[0]}/cell{part}"


def give_states(node: NodeProto, is_constant: Callable[[str], bool]) -> list[NodeProto]:
    """Have a sequence read values where its first states are constants, as later parts do; the nodes make them."""
    nodes = []
    for place, name in zip(_STATES, state_names(node, 0), strict=True):
        if is_constant(node.input[place]):
            nodes.append(make_node("Identity", [node.input[place]], [name], name=name))
            node.input[place] = name
    return nodes


def cut_sequence(
    node: NodeProto, source: RowWindow, ends: Sequence[int], outputs: Sequence[str]
) -> list[Strip] | None:
    """A sequence as strips that end after these steps, counted from where it begins. None if it has fewer.

    ``outputs`` are its results that are read.
    """
    steps, batch, _ = source.shape
    if not ends or ends[-1] >= steps or node.output[0] not in outputs:
        return None
    units = int(_attributes(node)["hidden_size"])
    whole = RowWindow(node.output[0], 0, np.dtype(np.float32), (steps, 1, batch, units))
    state = RowWindow("", 0, whole.dtype, (1, batch, units))
    backwards = _attributes(node).get("direction", b"forward") == b"reverse"
    own = NodeProto()
    own.CopyFrom(node)
    names = [f"{whole.of}/{word}" for word in ("sequence", "hidden", "cell", "steps", "last_hidden", "last_cell")]
    own.input[0], own.input[_STATES[0]], own.input[_STATES[1]] = names[:3]
    own.output[:] = names[3:]
    before = [node.input[place] for place in _STATES]
    strips = []
    pieces = list(itertools.pairwise((0, *ends, steps)))
    for number, (first, last) in enumerate(pieces):
        begin, end = (steps - last, steps - first) if backwards else (first, last)
        read, written = _steps(source, begin, end), _steps(whole, begin, end)
        after = list(state_names(node, number + 1))
        if number == len(pieces) - 1:  # later nodes that read the last states get them
            read_later = dict(zip(after, node.output[1:], strict=False))
            after = [read_later[name] if read_later.get(name) in outputs else name for name in after]
        values = [window_name(read), *before, window_name(written), *after]
        strips.append(
            Strip(
                (own,),
                tuple(values[:3]),
                tuple(values[3:]),
                {values[0]: read, values[3]: written},
                made=tuple(dataclasses.replace(state, of=name) for name in after),
                called=dict(zip(values, names, strict=True)),
            )
        )
        before = after
    return _complete(strips, whole)


def _steps(whole: RowWindow, first: int, last: int) -> RowWindow:
    step_bytes = math.prod(whole.shape[1:]) * whole.dtype.itemsize
    return RowWindow(whole.of, whole.begin + first * step_bytes, whole.dtype, (last - first, *whole.shape[1:]))
