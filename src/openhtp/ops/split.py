"""Split, Pack and UnPack: one tensor into several and back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import OpDef, Param, Port, Sample
from openhtp.ops._shapes import axis_in_range, refuse
from openhtp.ops._types import rows


def _axis(node: Node, extra: int = 0) -> int:
    return axis_in_range(node, node.params["axis"], node.input().rank + extra)


def _split_sizes(node: Node) -> list[int]:
    total = node.shape()[_axis(node)]
    places = [0, *node.ints("split_index"), total]
    sizes = [end - begin for begin, end in itertools.pairwise(places)]
    if min(sizes) < 1:
        refuse(node, f"split_index {places[1:-1]} does not rise between 1 and {total - 1}")
    return sizes


def _split_infer(node: Node) -> tuple[Shape, ...]:
    axis, shape = _axis(node), node.shape()
    return tuple((*shape[:axis], size, *shape[axis + 1 :]) for size in _split_sizes(node))


def _split_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    return tuple(np.split(arrays[0], node.ints("split_index"), axis=_axis(node)))


def _put_parts(node: Node, e: Emitter, emit: Callable[[str], Sequence[str]]) -> None:
    if e.same_encoding():
        for index, part in enumerate(emit(e.stored(0))):
            e.put_stored(index, part)
    else:
        for index, part in enumerate(emit(e.value(0))):
            e.put(index, part)


def _split_lower(node: Node, e: Emitter) -> None:
    sizes = _split_sizes(node)
    numbers = e.const(np.array(sizes, np.int64))
    _put_parts(node, e, lambda x: e.nodes("Split", [x, numbers], len(sizes), axis=e.axis(_axis(node))))


def _pack_infer(node: Node) -> tuple[Shape, ...]:
    shape = node.shape()
    if any(spec is not None and spec.shape != shape for spec in node.inputs):
        refuse(node, f"inputs have shapes {[list(s.shape) for s in node.inputs if s]}; expected all the same")
    axis = _axis(node, 1)
    return ((*shape[:axis], len(node.inputs), *shape[axis:]),)


def _pack_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    return (np.stack(arrays, axis=_axis(node, 1)),)


def _pack_lower(node: Node, e: Emitter) -> None:
    axis, same = _axis(node, 1), e.same_encoding()
    place = e.const(np.array([axis], np.int64))
    given = [e.stored(i) if same else e.value(i) for i in range(len(node.inputs))]
    out = e.node("Concat", [e.node("Unsqueeze", [x, place]) for x in given], axis=axis)
    if same:
        e.put_stored(0, out)
    else:
        e.put(0, out)


def _unpack_infer(node: Node) -> tuple[Shape, ...]:
    axis, shape = _axis(node), node.shape()
    return ((*shape[:axis], *shape[axis + 1 :]) or (1,),) * shape[axis]


def _unpack_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    shapes = _unpack_infer(node)
    return tuple(part.reshape(shapes[0]) for part in np.moveaxis(arrays[0], _axis(node), 0))


def _unpack_lower(node: Node, e: Emitter) -> None:
    axis, shapes = _axis(node), _unpack_infer(node)
    ones = e.const(np.ones(len(shapes), np.int64))
    flat = e.const(np.array(shapes[0], np.int64))

    def emit(x: str) -> list[str]:
        parts = e.nodes("Split", [x, ones], len(shapes), axis=axis) if len(shapes) > 1 else (x,)
        return [e.node("Reshape", [part, flat]) for part in parts]

    _put_parts(node, e, emit)


OPS = (
    OpDef(
        name="Split",
        summary="in[0] cut along axis before each of split_index",
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0..m]", variadic=True),),
        types=rows("T > T* : f16 f32 u16 s16 u8 s8 i32 n32 s32"),
        infer=_split_infer,
        reference=_split_reference,
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
        outputs=(Port("out[0]"),),
        types=rows("T* > T : f16 f32 u16 u8 s8 i32"),
        infer=_pack_infer,
        reference=_pack_reference,
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
        inputs=(Port("in[0]"),),
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
)
