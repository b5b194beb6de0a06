"""A convolution computed some rows at a time, so that a program can yield inside it.

In channel-last order the rows of one image lie one after the other. So a strip reads a window of the same memory,
with the rows that its neighbours read too, and writes its own rows of the result: nothing is copied, and every
number is computed as it would be in one piece.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    """A node that makes some rows of another's result; the windows that it reads and writes, and their names."""

    node: NodeProto
    read: tuple[str, RowWindow]
    written: tuple[str, RowWindow]


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
    names = [f"{window.of}@{window.begin}+{window.nbytes}" for window in (read, written)]
    strip.input[0], strip.output[0] = names
    strip.name = names[1]
    return Strip(strip, (names[0], read), (names[1], written))
