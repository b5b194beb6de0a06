"""Sums over rows of 16-bit numbers that come out the same however they are computed.

An HTP adds integers, so a row's result depends neither on how many others are computed with it nor on where in it
its numbers lie. Graphs of a language model for 1 and for 128 tokens rely on that: new tokens are at different
places there. The runtime multiplies a single row with a kernel of its own, which adds in another order, and adds
up what a softmax divides by lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter
from openhtp.ops._node import Node

_WIDE = (DType.UFIXED_POINT_16, DType.SFIXED_POINT_16)


def like_several_rows(node: Node, e: Emitter, left: str, product: Callable[[str], str]) -> str:
    """``product`` of the rows ``left``; a single row of 16-bit numbers goes in twice and comes out once."""
    if e.dynamic or node.outputs[0].shape[-2] != 1 or not is_wide_result(node):
        return product(left)
    both = product(e.node("Concat", [left, left], axis=-2))
    first = [e.const(np.array([number], np.int64)) for number in (0, 1, -2)]
    return e.node("Slice", [both, *first])


def settled_softmax(e: Emitter, x: str, axis: int) -> str:
    """Softmax whose sums are so precise that the order of what is added does not show in float."""
    axes = e.const(np.array([axis], np.int64))
    power = e.node("Exp", [e.node("Sub", [x, e.node("ReduceMax", [x, axes], keepdims=1)])])
    total = e.node("ReduceSum", [e.node("Cast", [power], to="float64"), axes], keepdims=1)
    return e.node("Div", [power, e.node("Cast", [total], to="float32")])


def is_wide_result(node: Node) -> bool:
    """Whether a node makes 16-bit numbers."""
    return node.outputs[0].dtype in _WIDE
