"""Softmax over the entries that a mask keeps: what the HTP makes of Softmax(Where(mask, x, min(x) + B)).

QNN has no such op in its public list (its MaskedSoftmax adds one number per channel); the backend builds it inside
when it recognises the pattern, and so does the engine here. Masked entries are exactly 0 and cost no range of the
encoding, which is the point of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import OpDef, Param, Port, Sample, vector_work
from openhtp.ops._rows import is_wide_result, settled_softmax
from openhtp.ops._shapes import broadcast, refuse
from openhtp.ops._tiles import split_anywhere
from openhtp.ops._types import rows

_LOWEST = -1e30


def _infer(node: Node) -> tuple[Shape, ...]:
    if broadcast(node, node.shape(0), node.shape(1)) != node.shape(0):
        refuse(node, f"mask {list(node.shape(1))} does not broadcast to the input's {list(node.shape(0))}")
    return (node.shape(),)


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    keeps = (arrays[1] == 0) if node.params["keep_zero"] else (arrays[1] != 0)
    x = np.where(keeps, arrays[0], -np.inf)
    power = np.where(keeps, np.exp(x - np.max(x, axis=-1, keepdims=True, initial=-1e300)), 0.0)
    total = power.sum(axis=-1, keepdims=True)
    return (power / np.where(total == 0, 1.0, total),)


def _lower(node: Node, e: Emitter) -> None:
    mask = e.value(1)
    truth = mask if node.input(1).dtype is DType.BOOL_8 else e.node("Cast", [mask], to="bool")
    keeps = e.node("Not", [truth]) if node.params["keep_zero"] else truth
    chosen = e.node("Where", [keeps, e.value(0), e.const(np.array(_LOWEST, np.float32))])
    # A row without any kept entry would come out even: its entries are masked, so they are 0.
    zero = e.const(np.array(0.0, np.float32))
    shares = settled_softmax(e, chosen, -1) if is_wide_result(node) else e.node("Softmax", [chosen], axis=-1)
    e.put(0, e.node("Where", [keeps, shares, zero]))


OPS = (
    OpDef(
        name="SelectSoftmax",
        summary="softmax over the last axis of in[0] where in[1] is not 0 (or is 0, if keep_zero); 0 elsewhere",
        inputs=(Port("in[0]"), Port("in[1]")),
        outputs=(Port("out[0]"),),
        types=rows("u16 u8|u16|b > u16", "u8 u8|u16|b > u8"),
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=vector_work(12),
        kind="softmax",
        params=(Param("keep_zero", DType.BOOL_8, default=False),),
        tile=lambda node: split_anywhere(node)[:-1],
        samples=(
            Sample(((2, 2, 3, 8), (2, 1, 3, 8)), low=-4.0, high=4.0, ranges={1: (0.0, 1.0)}),
            Sample(((3, 6), (6,)), {"keep_zero": True}, low=-4.0, high=4.0, ranges={1: (0.0, 1.0)}),
        ),
    ),
)
