"""A convolution computed in strips, so that a program can yield inside it.

In channel-last order, in which 8-bit convolutions are computed, the rows of one image lie one after the other. So
a strip reads a window of the same memory, with the rows that its neighbours read too, and writes its own rows of
the result. In the orders of float convolutions the channels of one image do: a strip reads all of the image and
some of the filters, and writes its own channels. Nothing is copied, and every number is computed as it would be in
one piece.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from openhtp.engine.onnx_graph import numpy_type
from openhtp.engine.onnx_messages import NodeProto, attribute_value
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

    ``source`` is the value that they read, or what ``windows`` calls a window on it. ``written`` is a window, too.
    ``filters`` has the parts of constants, along their first axis, that are read instead of the whole.
    """

    nodes: tuple[NodeProto, ...]
    source: str
    written: str
    windows: Mapping[str, RowWindow]
    filters: Mapping[str, FilterPart] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FilterPart:
    """Some of the entries of a constant along its first axis."""

    of: str
    first: int
    last: int


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
) -> tuple[list[Strip], RowWindow] | None:
    """The node as strips that end after these rows of its result, and all of the result. None if it has fewer.

    ``source`` is all of what it reads. ``filters`` and ``dtype`` are the channels and the type of the result.
    """
    if len(source.shape) != _PICTURE_RANK or source.shape[0] != 1:
        return None
    across, down = _rules(node)
    wide = across.results(source.shape[2])
    high = down.results(source.shape[_ROWS])
    if not ends or ends[-1] >= high:
        return None
    whole = RowWindow(node.output[0], 0, dtype, (1, high, wide, filters))
    strips = []
    for first, last in itertools.pairwise((0, *ends, high)):
        begin, end = down.axis.rows(first, last)
        top, bottom = max(0, -begin), max(0, end - source.shape[_ROWS])
        read, written = _rows(source, begin + top, end - bottom), _rows(whole, first, last)
        strips.append(_strip(node, read, written, (top, bottom)))
    return strips, whole


@dataclass(frozen=True, slots=True)
class _RowRule:
    """What the rows of a result read along one axis, and how much padding lies behind the last."""

    axis: TileAxis
    after: int

    def results(self, size: int) -> int:
        """How many rows come of so many."""
        return (size + self.axis.before + self.after - self.axis.reach) // self.axis.stride + 1


def _rules(node: NodeProto) -> tuple[_RowRule, _RowRule]:
    """The rules across and down the image."""
    attributes = {attribute.name: attribute_value(attribute) for attribute in node.attribute}
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


def _rows(whole: RowWindow, first: int, last: int) -> RowWindow:
    row_bytes = math.prod(whole.shape[_ROWS + 1 :]) * whole.dtype.itemsize
    shape = (1, last - first, *whole.shape[_ROWS + 1 :])
    return RowWindow(whole.of, whole.begin + first * row_bytes, whole.dtype, shape)


def _strip(node: NodeProto, read: RowWindow, written: RowWindow, padding: tuple[int, int]) -> Strip:
    strip = NodeProto()
    strip.CopyFrom(node)
    pads = next(attribute for attribute in strip.attribute if attribute.name == "pads")
    pads.ints[0], pads.ints[2] = padding
    source, result = window_name(read), window_name(written)
    strip.input[0], strip.output[0] = source, result
    strip.name = result
    return Strip((strip,), source, result, {source: read, result: written})


def window_name(window: RowWindow) -> str:
    """The name under which a session knows a window."""
    return f"{window.of}@{window.begin}+{window.nbytes}"


# Float convolutions, by channels.

# In blocks of so many channels, or of half as many, the runtime keeps images and filters.
CHANNEL_BLOCK = 16
_BLOCKED = "com.microsoft.nchwc"
# May follow inside a strip: what rounding makes of a number depends on nothing else.
_ROUNDING = "Cast"
_INPUTS_WITHOUT_SUM = 3


def cut_by_channels(node: NodeProto) -> bool:
    """Whether a node of the optimised model is a float convolution whose channels can be computed in parts."""
    attributes = {attribute.name: attribute_value(attribute) for attribute in node.attribute}
    return (
        node.op_type == "Conv"
        and node.domain in ("", _BLOCKED)
        and len(node.input) <= _INPUTS_WITHOUT_SUM
        and {"kernel_shape", "strides", "pads"} <= attributes.keys()
        and attributes.get("auto_pad", b"NOTSET") == b"NOTSET"
        and attributes.get("group", 1) == 1
    )


def stays_in_strips(node: NodeProto) -> bool:
    """Whether a node that reads nothing but a convolution's result can be computed for some channels alone."""
    if node.op_type == "ReorderOutput":
        return not any(attribute.name == "channels_last" and attribute.i for attribute in node.attribute)
    return bool(node.op_type == _ROUNDING)


def cut_into_channels(
    nodes: Sequence[NodeProto], source: RowWindow, filters: int, ends: Sequence[int]
) -> tuple[list[Strip], RowWindow] | None:
    """A convolution and what follows it as strips that end after these channels, and all of the result.

    ``filters`` is how many the convolution has, those that fill a block up included. None if it cannot be cut so.
    """
    node = nodes[0]
    if len(source.shape) != _PICTURE_RANK or source.shape[0] != 1 or not ends or ends[-1] >= filters:
        return None
    across, down = _rules(node)
    high, wide = down.results(source.shape[2]), across.results(source.shape[3])
    channels = next((_reordered(each) for each in nodes if each.op_type == "ReorderOutput"), filters)
    if channels <= ends[-1]:
        return None
    whole = RowWindow(nodes[-1].output[0], 0, _made_type(nodes), (1, channels, high, wide))
    strips = []
    for first, last in itertools.pairwise((0, *ends, filters)):
        last_written = min(last, channels)
        written = dataclasses.replace(
            whole, begin=first * high * wide * whole.dtype.itemsize, shape=(1, last_written - first, high, wide)
        )
        strips.append(_channel_strip(nodes, written, FilterPart(node.input[1], first, last), last_written - first))
    return strips, whole


def _channel_strip(nodes: Sequence[NodeProto], written: RowWindow, part: FilterPart, channels: int) -> Strip:
    result = window_name(written)
    filters: dict[str, FilterPart] = {}
    copies: list[NodeProto] = []
    for number, node in enumerate(nodes):
        strip = NodeProto()
        strip.CopyFrom(node)
        if number == 0:
            for index in range(1, len(node.input)):
                name = f"{node.input[index]}[{part.first}:{part.last}]"
                filters[name] = dataclasses.replace(part, of=node.input[index])
                strip.input[index] = name
        else:
            strip.input[0] = copies[-1].output[0]
        for attribute in strip.attribute:
            if node.op_type == "ReorderOutput" and attribute.name == "channels":
                attribute.i = channels
        strip.output[0] = result if number == len(nodes) - 1 else f"{node.output[0]}@{part.first}"
        strip.name = strip.output[0]
        copies.append(strip)
    return Strip(tuple(copies), nodes[0].input[0], result, {result: written}, filters)


def _made_type(nodes: Sequence[NodeProto]) -> np.dtype[Any]:
    """The type in which the last of these nodes leaves floats."""
    casts = [node for node in nodes if node.op_type == _ROUNDING]
    return numpy_type(casts[-1].attribute[0].i) if casts else np.dtype(np.float32)


def _reordered(node: NodeProto) -> int:
    """How many channels are left when an image leaves its blocks."""
    return next(int(attribute.i) for attribute in node.attribute if attribute.name == "channels")
