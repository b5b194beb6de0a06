"""SparseToDense. Sparse tensors are held dense here, so this is a copy; its cost is that of writing the output."""

from __future__ import annotations

from collections.abc import Sequence

from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._moving import move
from openhtp.ops._node import Array, Node
from openhtp.ops._opdef import OpDef, Port, Sample
from openhtp.ops._shapes import same_as_input
from openhtp.ops._types import rows


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    return (arrays[0],)


def _lower(node: Node, e: Emitter) -> None:
    move(e, lambda x: x)


OPS = (
    OpDef(
        name="SparseToDense",
        summary="in[0] with every element in place, zeros included",
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"),),
        types=rows("T > T : u8 f16 f32"),
        infer=same_as_input,
        reference=_reference,
        lower=_lower,
        layout=Layout.ANY,
        values_kept=True,
        samples=(Sample(((1, 4, 5, 3),)),),
    ),
)
