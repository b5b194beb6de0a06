"""Sliding windows over height and width, shared by convolutions, pools and patches (channel-last shapes)."""

from __future__ import annotations

from collections.abc import Sequence
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
    """One axis of a window: its stride, its width, and the padding around the input."""

    kernel: int
    stride: int
    before: int
    after: int
    dilation: int = 1


def read_windows(node: Node, kernel: Sequence[int], count: int) -> tuple[AxisWindow, ...]:
    """One window for each of ``count`` image axes. One-dimensional ops give their numbers as scalars."""
    strides = node.ints("stride")
    dilations = node.ints("dilation") if "dilation" in node.params else (1,) * count
    lengths = (len(kernel), len(strides), len(dilations), len(node.ints("pad_amount")))
    if lengths != (count, count, count, 2 * count):
        refuse(node, f"sizes, stride and dilation take {count} numbers each, pad_amount {count} x 2")
    return tuple(
        AxisWindow(size, stride, before, after, dilation)
        for size, stride, (before, after), dilation in zip(
            kernel, strides, node.pairs("pad_amount"), dilations, strict=True
        )
    )


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
