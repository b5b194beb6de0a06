"""Prelu: a slope of its own below zero (LeakyRelu is one with a single slope)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node
from openhtp.ops._onnx import OnnxRule
from openhtp.ops._opdef import Constraint, OpDef, Port, Sample, vector_work
from openhtp.ops._shapes import same_as_input
from openhtp.ops._tiles import split_anywhere
from openhtp.ops._types import rows


def _slopes_fit(node: Node) -> bool:
    shape, slopes = node.shape(0), node.shape(1)
    pairs = zip(reversed(shape), reversed(slopes), strict=False)
    return len(slopes) <= len(shape) and all(slope in (1, size) for size, slope in pairs)


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    return (np.maximum(arrays[0], 0.0) + arrays[1] * np.minimum(arrays[0], 0.0),)


def _lower(node: Node, e: Emitter) -> None:
    e.put(0, e.node("PRelu", [e.value(0), e.value(1)]))


OPS = (
    OpDef(
        name="Prelu",
        summary="out = in[0] above 0, in[1] * in[0] below",
        inputs=(Port("in[0]"), Port("in[1]")),
        outputs=(Port("out[0]"),),
        types=rows("T T > T : f16 f32 s16 u8 s8", "u16 u8|u16 > u16"),
        infer=same_as_input,
        reference=_reference,
        lower=_lower,
        work=vector_work(3),
        kind="prelu",
        layout=Layout.ANY,
        constraints=(Constraint("the slopes broadcast to the input", _slopes_fit, late=True),),
        tile=split_anywhere,
        onnx=(OnnxRule("PRelu"),),
        samples=(
            Sample(((1, 4, 5, 6), (6,)), static=(1,), ranges={1: (0.05, 0.5)}),
            Sample(((2, 5), (1,)), static=(1,), ranges={1: (0.1, 0.2)}),
        ),
    ),
)
