"""Sizes as the units see them. The HMX works on blocks of 32 channels and of 8 by 8 pixels (8 by 4 for two bytes);
what does not fill a block is computed all the same."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from openhtp.core.opcall import OpCall

_CHANNELS = 32
_SIDE = 8
_WIDTHS = (8, 4)
_ROWS = (64, 32)
_SHALLOW = 32
_MOST_TAPS = 25

Shape = tuple[int, ...]
_CONVOLUTIONS = frozenset({"conv", "dilated", "stem", "group", "conv3d"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a matrix or window op does; paddings as in ``KernelSize``."""

    macs: int = 0
    taps: int = 1
    packed: int = 0
    matrices: int = 1
    planes: int = 1
    row_padding: tuple[float, float] = (1.0, 1.0)
    channel_padding: float = 1.0


def size_of(kind: str, call: OpCall, macs: int) -> Size:
    """The size of a call of this kind; ``macs`` as the op counts them."""
    if kind in _CONVOLUTIONS:
        return _conv(kind, call, macs)
    if call.op in ("FullyConnected", "MatMul"):
        return _product(call, macs)
    if kind == "depthwise":
        weight = call.inputs[1]
        return Size(macs=macs, taps=1 if weight is None else math.prod(weight.shape[:-1]))
    if kind == "pool":
        window = call.params.get("filter_size")
        return Size(taps=1 if window is None else min(_MOST_TAPS, math.prod(_ints(window))))
    return Size()


def vector_padding(shapes: tuple[Shape, ...]) -> tuple[float, float]:
    """How much larger tensors are in blocks than by count, for elements of one byte and of two."""
    elements = max(1, sum(math.prod(shape) for shape in shapes))
    one, two = (sum(_in_blocks(shape, width) for shape in shapes) / elements for width in _WIDTHS)
    return one, two


def _in_blocks(shape: Shape, width: int) -> int:
    *front, high, wide, deep = (1, 1, 1, *shape) if len(shape) < 3 else (1, *shape)
    # What is one row high is laid out as rows of a matrix, and fills its blocks.
    rows = _up(wide, width) if high == 1 else _up(high, _SIDE) * _up(wide, width)
    return math.prod(front) * rows * _up(deep, _CHANNELS)


def _conv(kind: str, call: OpCall, macs: int) -> Size:
    weight = call.inputs[1]
    source = call.inputs[0]
    if weight is None or source is None:
        return Size(macs=macs)
    image = (source if call.op.startswith("Transpose") else call.outputs[0]).shape
    depth = source.shape[-1] // int(call.params.get("group", 1))
    outputs = call.outputs[0].shape[-1]
    taps = math.prod(weight.shape[:-2])
    # Few channels leave most of a block empty, so pixels of the window are packed into it.
    block = _up(depth, _CHANNELS) * taps if depth >= _SHALLOW else _up(depth * taps, _CHANNELS)
    high, wide = (1, 1, *image[1:-1])[-2:]
    # A single row of pixels is computed as rows of a matrix.
    one, two = (
        _up(wide, _SIDE * width) / wide if high == 1 else _up(high, _SIDE) * _up(wide, width) / (high * wide)
        for width in _WIDTHS
    )
    return Size(
        macs=macs,
        taps=taps,
        planes=weight.shape[0] if len(weight.shape) > 4 else 1,
        packed=math.prod(image[:-1]) * taps * depth if kind == "stem" else 0,
        row_padding=(one, two),
        channel_padding=_up(outputs, _CHANNELS) * block / (outputs * depth * taps),
    )


def _product(call: OpCall, macs: int) -> Size:
    shape = call.outputs[0].shape
    columns = shape[-1]
    whole = call.op == "FullyConnected" or len(shape) < 2
    rows = math.prod(shape[:-1]) if whole else shape[-2]
    depth = max(1, macs // max(1, math.prod(shape)))
    one, two = (_up(rows, block) / rows for block in _ROWS)
    return Size(
        macs=macs,
        matrices=1 if whole else math.prod(shape[:-2]),
        row_padding=(one, two),
        channel_padding=_up(depth, _CHANNELS) * _up(columns, _CHANNELS) / (depth * columns),
    )


def _up(number: int, block: int) -> int:
    return -(-number // block) * block


def _ints(value: Any) -> tuple[int, ...]:
    return tuple(int(number) for number in np.ravel(value))
