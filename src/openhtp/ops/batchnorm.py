"""Batchnorm: a scale and a shift per channel (the statistics are folded into them)."""

from __future__ import annotations

from collections.abc import Sequence

from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import OpDef, Port, Sample, vector_work
from openhtp.ops._shapes import expect_shape
from openhtp.ops._tiles import split_anywhere
from openhtp.ops._types import rows


def _infer(node: Node) -> tuple[Shape, ...]:
    channels = node.shape()[-1:]
    expect_shape(node, 1, channels, "one scale per channel")
    expect_shape(node, 2, channels, "one shift per channel")
    return (node.shape(),)


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    out = arrays[0] * arrays[1]
    return (out + arrays[2] if node.has(2) else out,)


def _lower(node: Node, e: Emitter) -> None:
    out = e.node("Mul", [e.value(0), e.value(1)])
    e.put(0, e.node("Add", [out, e.value(2)]) if node.has(2) else out)


OPS = (
    OpDef(
        name="Batchnorm",
        summary="out = in[0] * in[1] + in[2], per channel of the last axis",
        inputs=(Port("in[0]"), Port("in[1]"), Port("in[2]", optional=True)),
        outputs=(Port("out[0]"),),
        types=rows("T T T > T : f16 f32", "u16 u8|u16|s16 u8|s32 > u16", "u8 u8 u8|s32 > u8", "s8 s8 s32 > s8"),
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=vector_work(2),
        kind="batchnorm",
        layout=Layout.ANY,
        takes_activation=True,
        tile=split_anywhere,
        samples=(
            Sample(((1, 5, 4, 6), (6,), (6,)), static=(1, 2), ranges={1: (0.5, 2.0)}),
            Sample(((3, 8), (8,), None), static=(1,), ranges={1: (0.5, 2.0)}),
        ),
    ),
)
