"""ElementWiseSelect: one of two values by a condition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node
from openhtp.ops._onnx import OnnxRule
from openhtp.ops._opdef import OpDef, Port, Sample
from openhtp.ops._shapes import broadcast_inputs
from openhtp.ops._tiles import split_anywhere
from openhtp.ops._types import rows
from openhtp.ops.elementwise_compare import truth_of


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    return (np.where(arrays[0] != 0, arrays[1], arrays[2]),)


def _lower(node: Node, e: Emitter) -> None:
    e.put(0, e.node("Where", [truth_of(node, e, 0), e.value(1), e.value(2)]))


OPS = (
    OpDef(
        name="ElementWiseSelect",
        summary="in[1] where in[0] is true, else in[2]",
        inputs=(Port("in[0]"), Port("in[1]"), Port("in[2]")),
        outputs=(Port("out[0]"),),
        types=rows("b T T > T : f16 f32 i64", "u8|s8|b|i32 T T > T : u16 s16 u8 s8 i32"),
        infer=broadcast_inputs,
        reference=_reference,
        lower=_lower,
        moves_only=True,
        kind="add",
        layout=Layout.ANY,
        tile=split_anywhere,
        onnx=(OnnxRule("Where"),),
        samples=(
            Sample(((1, 4, 5, 3), (1, 4, 5, 3), (1, 4, 5, 3)), ranges={0: (0.0, 1.0)}),
            Sample(((4, 1), (3,), (2, 4, 3)), ranges={0: (0.0, 1.0)}),
        ),
    ),
)
