"""Concat: tensors one after another along an axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._onnx import OnnxRule
from openhtp.ops._opdef import OpDef, Param, Port, Sample
from openhtp.ops._shapes import axis_in_range, last_axis, refuse
from openhtp.ops._tiles import TileAxis
from openhtp.ops._types import rows


def _infer(node: Node) -> tuple[Shape, ...]:
    first = node.shape()
    axis = axis_in_range(node, node.params["axis"], len(first))
    total = 0
    for index in range(len(node.inputs)):
        shape = node.shape(index)
        if len(shape) != len(first) or shape[:axis] + shape[axis + 1 :] != first[:axis] + first[axis + 1 :]:
            refuse(node, f"input {index} has shape {list(shape)}; expected {list(first)} except on axis {axis}")
        total += shape[axis]
    return ((*first[:axis], total, *first[axis + 1 :]),)


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    return (np.concatenate(arrays, axis=node.params["axis"]),)


def _lower(node: Node, e: Emitter) -> None:
    axis, count = e.axis(node.params["axis"]), range(len(node.inputs))
    if e.same_encoding():
        e.put_stored(0, e.node("Concat", [e.stored(index) for index in count], axis=axis))
    else:
        e.put(0, e.node("Concat", [e.value(index) for index in count], axis=axis))


def _tiles(node: Node) -> tuple[TileAxis, ...]:
    count = len(node.inputs)
    others = (axis for axis in range(node.input().rank) if axis != node.params["axis"])
    return tuple(TileAxis(axis=axis, inputs=(axis,) * count) for axis in others)


OPS = (
    OpDef(
        name="Concat",
        summary="the inputs one after another along axis, requantized to the output's encoding",
        inputs=(Port("in[0..m]", variadic=True),),
        outputs=(Port("out[0]"),),
        types=rows("T* > T : f16 f32 u16 s16 u8 s8 n32 i32 i64"),
        infer=_infer,
        reference=_reference,
        lower=_lower,
        kind="concat",
        params=(Param("axis", default=last_axis),),
        layout=Layout.ANY,
        values_kept=True,
        moves_only=True,
        tile=_tiles,
        onnx=(OnnxRule("Concat", attrs={"axis": "axis"}),),
        samples=(
            Sample(((1, 4, 4, 3), (1, 4, 4, 5)), {"axis": 3}, ranges={1: (-1.0, 3.0)}),
            Sample(((2, 3), (1, 3), (4, 3)), {"axis": 0}),
        ),
    ),
)
