"""Split, Concat, Pack and UnPack: one tensor into several and back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from openhtp.ops._node import Arrays, Emitter, Layout, Node, Results, Shapes, exact_forms
from openhtp.ops._opdef import OnnxRule, OpDef, Param, Port, Sample, rows
from openhtp.ops._shapes import axis_in_range, last_axis, refuse
from openhtp.ops._tiles import TileAxis


def _axis(node: Node, extra: int = 0) -> int:
    return axis_in_range(node, node.params["axis"], node.input().rank + extra)


def _split_sizes(node: Node) -> list[int]:
    total = node.shape()[_axis(node)]
    places = [0, *node.ints("split_index"), total]
    sizes = [end - begin for begin, end in itertools.pairwise(places)]
    if min(sizes) < 1:
        refuse(node, f"split_index {places[1:-1]} does not rise between 1 and {total - 1}")
    return sizes


def _split_infer(node: Node) -> Shapes:
    axis, shape = _axis(node), node.shape()
    return tuple((*shape[:axis], size, *shape[axis + 1 :]) for size in _split_sizes(node))


def _put_parts(node: Node, e: Emitter, emit: Callable[[str], Sequence[str]]) -> None:
    read, put = exact_forms(e)
    for index, part in enumerate(emit(read(0))):
        put(index, part)


def _split_lower(node: Node, e: Emitter) -> None:
    sizes = _split_sizes(node)
    numbers = e.ints(sizes)
    _put_parts(node, e, lambda x: e.nodes("Split", [x, numbers], len(sizes), axis=e.axis(_axis(node))))


def _pack_infer(node: Node) -> Shapes:
    shape = node.shape()
    if any(spec is not None and spec.shape != shape for spec in node.inputs):
        refuse(node, f"inputs have shapes {[list(s.shape) for s in node.inputs if s]}; expected all the same")
    axis = _axis(node, 1)
    return ((*shape[:axis], len(node.inputs), *shape[axis:]),)


def _pack_lower(node: Node, e: Emitter) -> None:
    axis, (read, put) = _axis(node, 1), exact_forms(e)
    new_axis = e.ints([axis])
    inputs = [read(index) for index in range(len(node.inputs))]
    put(0, e.node("Concat", [e.node("Unsqueeze", [x, new_axis]) for x in inputs], axis=axis))


def _unpack_infer(node: Node) -> Shapes:
    axis, shape = _axis(node), node.shape()
    return ((*shape[:axis], *shape[axis + 1 :]) or (1,),) * shape[axis]


def _unpack_reference(node: Node, arrays: Arrays) -> Results:
    shapes = _unpack_infer(node)
    return tuple(part.reshape(shapes[0]) for part in np.moveaxis(arrays[0], _axis(node), 0))


def _unpack_lower(node: Node, e: Emitter) -> None:
    axis, shapes = _axis(node), _unpack_infer(node)
    ones = e.const(np.ones(len(shapes), np.int64))
    flat = e.ints(shapes[0])

    def emit(x: str) -> list[str]:
        parts = e.nodes("Split", [x, ones], len(shapes), axis=axis) if len(shapes) > 1 else (x,)
        return [e.node("Reshape", [part, flat]) for part in parts]

    _put_parts(node, e, emit)


def _concat_infer(node: Node) -> Shapes:
    first = node.shape()
    axis = axis_in_range(node, node.params["axis"], len(first))
    total = 0
    for index in range(len(node.inputs)):
        shape = node.shape(index)
        if len(shape) != len(first) or shape[:axis] + shape[axis + 1 :] != first[:axis] + first[axis + 1 :]:
            refuse(node, f"input {index} has shape {list(shape)}; expected {list(first)} except on axis {axis}")
        total += shape[axis]
    return ((*first[:axis], total, *first[axis + 1 :]),)


def _concat_lower(node: Node, e: Emitter) -> None:
    read, put = exact_forms(e)
    put(0, e.node("Concat", [read(i) for i in range(len(node.inputs))], axis=e.axis(node.params["axis"])))


def _concat_tiles(node: Node) -> tuple[TileAxis, ...]:
    others = (axis for axis in range(node.input().rank) if axis != node.params["axis"])
    return tuple(TileAxis(axis=axis, inputs=(axis,) * len(node.inputs)) for axis in others)


OPS = (
    OpDef(
        name="Split",
        summary="in[0] cut along axis before each of split_index",
        outputs=(Port("out[0..m]", variadic=True),),
        types=rows("T > T* : f16 f32 u16 s16 u8 s8 i32 n32 s32"),
        infer=_split_infer,
        reference=lambda node, arrays: tuple(np.split(arrays[0], node.ints("split_index"), axis=_axis(node))),
        lower=_split_lower,
        kind="move",
        params=(Param("axis", mandatory=True), Param("split_index", rank=1, mandatory=True)),
        layout=Layout.ANY,
        values_kept=True,
        moves_only=True,
        samples=(
            Sample(((1, 4, 5, 9),), {"axis": 3, "split_index": [2, 6]}),
            Sample(((6, 3),), {"axis": 0, "split_index": [4]}),
        ),
    ),
    OpDef(
        name="Pack",
        summary="the inputs stacked along a new axis",
        inputs=(Port("in[0..m]", variadic=True),),
        types=rows("T* > T : f16 f32 u16 u8 s8 i32"),
        infer=_pack_infer,
        reference=lambda node, arrays: (np.stack(arrays, axis=_axis(node, 1)),),
        lower=_pack_lower,
        kind="move",
        params=(Param("axis", mandatory=True),),
        values_kept=True,
        moves_only=True,
        samples=(Sample(((4, 3), (4, 3)), {"axis": 1}, ranges={1: (-1.0, 3.0)}),),
    ),
    OpDef(
        name="UnPack",
        summary="in[0] taken apart along axis, which disappears",
        outputs=(Port("out[0..m]", variadic=True),),
        types=rows("T > T* : f16 f32 u16 u8 s8 i32"),
        infer=_unpack_infer,
        reference=_unpack_reference,
        lower=_unpack_lower,
        kind="move",
        params=(Param("axis", mandatory=True),),
        values_kept=True,
        moves_only=True,
        samples=(Sample(((4, 3, 2),), {"axis": 1}),),
    ),
    OpDef(
        name="Concat",
        summary="the inputs one after another along axis, requantized to the output's encoding",
        inputs=(Port("in[0..m]", variadic=True),),
        types=rows("T* > T : f16 f32 u16 s16 u8 s8 n32 i32 i64"),
        infer=_concat_infer,
        reference=lambda node, arrays: (np.concatenate(arrays, axis=node.params["axis"]),),
        lower=_concat_lower,
        kind="concat",
        params=(Param("axis", default=last_axis),),
        layout=Layout.ANY,
        values_kept=True,
        moves_only=True,
        tile=_concat_tiles,
        onnx=(OnnxRule("Concat", attrs={"axis": "axis"}),),
        samples=(
            Sample(((1, 4, 4, 3), (1, 4, 4, 5)), {"axis": 3}, ranges={1: (-1.0, 3.0)}),
            Sample(((2, 3), (1, 3), (4, 3)), {"axis": 0}),
        ),
    ),
)
