"""What convolutions of one, two and three dimensions have in common: windows, parameters, groups."""

from __future__ import annotations

from openhtp.ops._node import Node
from openhtp.ops._opdef import Param
from openhtp.ops._shapes import refuse
from openhtp.ops._windows import PAD, STRIDE, AxisWindow


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
