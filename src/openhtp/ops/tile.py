"""Tile: the input repeated along each axis."""

from __future__ import annotations

import numpy as np

from openhtp.ops._node import Layout, Node, Shapes
from openhtp.ops._opdef import Constraint, OpDef, Param, Sample, rows
from openhtp.ops._shapes import refuse


def _infer(node: Node) -> Shapes:
    multiples = node.ints("multiples")
    if len(multiples) != node.input().rank:
        refuse(node, f"multiples has {len(multiples)} numbers; expected one per axis of {list(node.shape())}")
    return (tuple(size * times for size, times in zip(node.shape(), multiples, strict=True)),)


OPS = (
    OpDef(
        name="Tile",
        summary="in[0] repeated multiples times along each axis",
        types=rows("T > T : f16 f32 u16 u8 s8 i32"),
        infer=_infer,
        reference=lambda node, arrays: (np.tile(arrays[0], node.ints("multiples")),),
        lower=lambda node, e: e.put(0, e.node("Tile", [e.value(0), e.ints(e.vector(node.ints("multiples")))])),
        kind="move",
        params=(Param("multiples", rank=1, mandatory=True),),
        constraints=(Constraint("multiples are at least 1", lambda node: min(node.ints("multiples")) >= 1),),
        layout=Layout.ANY,
        values_kept=True,
        moves_only=True,
        samples=(Sample(((1, 2, 3, 4),), {"multiples": [2, 1, 3, 1]}), Sample(((3,),), {"multiples": [4]})),
    ),
)
