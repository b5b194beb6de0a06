"""NonZero: where a tensor is not zero. There is room for every element; rows that are not needed hold -1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import Constraint, OpDef, Port, Sample, Work, touched_bytes
from openhtp.ops._places import coordinates, emit_coordinates, emit_first_places, first_places
from openhtp.ops._types import rows


def _infer(node: Node) -> tuple[Shape, ...]:
    return ((node.input().elements, node.input().rank),)


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    found = coordinates(first_places(arrays[0] != 0, arrays[0].size), node.shape())
    return (found.astype(np.int64),)


def _lower(node: Node, e: Emitter) -> None:
    given = node.input()
    truth = e.value(0) if given.dtype is DType.BOOL_8 else e.node("Cast", [e.value(0)], to="bool")
    places = emit_first_places(e, truth, given.elements, given.elements)
    spelled = emit_coordinates(e, places, given.shape)
    e.put_stored(0, e.node("Cast", [spelled], to=node.outputs[0].dtype.numpy.name))


def _work(node: Node) -> Work:
    read, written = touched_bytes(node)
    return Work(vector_ops=8 * node.outputs[0].elements, bytes_read=read, bytes_written=written)


OPS = (
    OpDef(
        name="NonZero",
        summary="coordinates of the elements of in[0] that are not 0, one row each in order; -1 in rows left over",
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"),),
        types=rows("u8|b > n32|i32"),
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=_work,
        constraints=(Constraint("the input is not dynamic", lambda node: not node.input().is_dynamic),),
        max_rank=4,
        samples=(Sample(((3, 4, 2),), low=0.0, high=3.0), Sample(((9,),), low=0.0, high=1.0)),
    ),
)
