"""Transpose: axes in another order."""

from __future__ import annotations

from openhtp.ops._node import Emitter, Layout, Node, Shapes
from openhtp.ops._opdef import OpDef, Param, Sample, rows
from openhtp.ops._shapes import refuse


def _infer(node: Node) -> Shapes:
    perm, shape = node.ints("perm"), node.shape()
    if sorted(perm) != list(range(len(shape))):
        refuse(node, f"perm is {list(perm)}; expected an order of the axes 0..{len(shape) - 1}")
    return (tuple(shape[axis] for axis in perm),)


def _lower(node: Node, e: Emitter) -> None:
    put = e.put_stored if e.same_encoding() else e.put
    put(0, e.permuted(0, node.ints("perm"), stored=e.same_encoding()))


OPS = (
    OpDef(
        name="Transpose",
        summary="out axis i is in[0] axis perm[i]",
        types=rows("T > T : f16 f32 u16 s16 u8 s8 b n32 i32 i64"),
        infer=_infer,
        reference=lambda node, arrays: (arrays[0].transpose(node.ints("perm")),),
        lower=_lower,
        kind="transpose",
        params=(Param("perm", rank=1, mandatory=True),),
        layout=Layout.OWN,
        values_kept=True,
        moves_only=True,
        samples=(Sample(((2, 3, 4, 5),), {"perm": [0, 3, 1, 2]}), Sample(((4, 6),), {"perm": [1, 0]})),
    ),
)
