"""Sliding windows over height and width, shared by convolutions and pools (channel-last shapes)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from openhtp.ops._node import Array, Node
from openhtp.ops._opdef import Param
from openhtp.ops._shapes import refuse
from openhtp.ops._tiles import TileAxis

STRIDE = Param("stride", rank=1, mandatory=True)
PAD = Param("pad_amount", rank=2, mandatory=True)


@dataclass(frozen=True, slots=True)
class AxisWindow:
    """One axis of a window: how far apart, how wide, and what is put around the input."""

    kernel: int
    stride: int
    before: int
    after: int
    dilation: int = 1


def onnx_pads(windows: tuple[AxisWindow, ...]) -> list[int]:
    """Pads in ONNX's order: all befores, then all afters."""
    return [window.before for window in windows] + [window.after for window in windows]


def patches(x: Array, windows: tuple[AxisWindow, ...], sizes: tuple[int, ...], fill: float) -> Array:
    """Every window of a channel-last array: [batch, *sizes, *kernel, channel], padded with ``fill``.

    Padding beyond ``after`` is added where ``sizes`` asks for a last window that hangs over.
    """
    pads = [(0, 0)]
    for window, size, length in zip(windows, sizes, x.shape[1:-1], strict=True):
        reach = (size - 1) * window.stride + window.dilation * (window.kernel - 1) + 1
        pads.append((window.before, max(window.after, reach - length - window.before)))
    padded = np.pad(x, [*pads, (0, 0)], constant_values=fill)
    for axis, (window, size) in enumerate(zip(windows, sizes, strict=True)):
        places = np.arange(size)[:, None] * window.stride + np.arange(window.kernel)[None, :] * window.dilation
        padded = np.take(padded, places, axis=1 + 2 * axis)
    rank = len(windows)
    order = [0, *(1 + 2 * i for i in range(rank)), *(2 + 2 * i for i in range(rank)), 1 + 2 * rank]
    return padded.transpose(order)


def batch_and_rows(node: Node, windows: tuple[AxisWindow, ...]) -> tuple[TileAxis, ...]:
    """The batch is cut freely, image axes with the overlap of neighbouring windows."""
    whole = (None,) * (len(node.inputs) - 1)
    rows = tuple(
        TileAxis(
            axis=axis,
            inputs=(axis, *whole),
            reach=window.dilation * (window.kernel - 1) + 1,
            stride=window.stride,
            before=window.before,
        )
        for axis, window in enumerate(windows, 1)
    )
    return (TileAxis(axis=0, inputs=(0, *whole)), *rows)


# What convolutions of one, two and three dimensions have in common: windows, parameters, groups.


def dimensions(node: Node) -> int:
    """How many image axes the op slides along, from its name."""
    return int(node.op[-2])


def is_depthwise(node: Node) -> bool:
    """Whether every channel has filters of its own."""
    return node.op.startswith("DepthWise")


def groups(node: Node) -> int:
    """Into how many groups the channels fall."""
    return node.shape()[-1] if is_depthwise(node) else int(node.params["group"])


def windows(node: Node) -> tuple[AxisWindow, ...]:
    """One window per image axis. One-dimensional ops give their numbers as scalars."""
    count = dimensions(node)
    kernel = node.shape(1)[:count]
    strides, dilations = node.ints("stride"), node.ints("dilation") if "dilation" in node.params else (1,) * count
    pads = node.pairs("pad_amount")
    if (len(strides), len(dilations), len(pads)) != (count, count, count):
        refuse(node, f"stride and dilation take {count} numbers each, pad_amount {count} x 2")
    return tuple(
        AxisWindow(size, stride, before, after, dilation)
        for size, stride, (before, after), dilation in zip(kernel, strides, pads, dilations, strict=True)
    )


def window_params(count: int) -> tuple[Param, ...]:
    """Stride and padding in the form that an op of so many dimensions takes them."""
    if count == 1:
        return Param("stride", mandatory=True), Param("pad_amount", rank=1, mandatory=True)
    return STRIDE, PAD


def dilation_param(count: int) -> Param:
    """Dilation in the form that an op of so many dimensions takes it."""
    return Param("dilation", default=1) if count == 1 else Param("dilation", rank=1, default=(1,) * count)
