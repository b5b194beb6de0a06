"""Reductions over axes: largest, smallest, mean, sum, product, sum of squares; and Argmax, Argmin, TopK."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._node import Arrays, Emitter, Layout, Node, Results, Shapes, put_integers
from openhtp.ops._opdef import Constraint, OpDef, Param, Port, Sample, TypeRow, Work, rows
from openhtp.ops._shapes import axes_in_range, axis_in_range
from openhtp.ops._tiles import TileAxis

_KEEP = Param("keep_dims", DType.BOOL_8, default=False)


def _axes(node: Node) -> tuple[int, ...]:
    return axes_in_range(node, node.ints("axes"), node.input().rank)


def _reduced_shape(node: Node, axes: Sequence[int]) -> Shapes:
    if node.params["keep_dims"]:
        return (tuple(1 if axis in axes else size for axis, size in enumerate(node.shape())),)
    return (tuple(size for axis, size in enumerate(node.shape()) if axis not in axes) or (1,),)


def _work(node: Node, ops_per_element: int = 1) -> Work:
    return Work.on(node, vector_ops=ops_per_element * max(node.input().elements, node.outputs[0].elements))


def _tiles(node: Node) -> tuple[TileAxis, ...]:
    others = [axis for axis in range(node.input().rank) if axis not in _axes(node)]
    places = others if node.params["keep_dims"] else range(len(others))
    return tuple(TileAxis(axis=kept_axis, inputs=(axis,)) for kept_axis, axis in zip(places, others, strict=True))


def _reduction(name: str, summary: str, compute: Callable[..., Any], types: tuple[TypeRow, ...]) -> OpDef:
    def reference(node: Node, arrays: Arrays) -> Results:
        result = np.asarray(compute(arrays[0], axis=_axes(node), keepdims=node.params["keep_dims"]))
        return (result.astype(arrays[0].dtype).reshape(_reduced_shape(node, _axes(node))[0]),)

    def lower(node: Node, e: Emitter) -> None:
        axes = e.ints([e.axis(axis) for axis in _axes(node)])
        out = e.node(name, [e.value(0), axes], keepdims=int(node.params["keep_dims"]))
        if not node.params["keep_dims"] and len(_axes(node)) == node.input().rank:
            out = e.node("Reshape", [out, e.ints([1])])
        e.put(0, out)

    return OpDef(
        name=name,
        summary=summary,
        types=types,
        infer=lambda node: _reduced_shape(node, _axes(node)),
        reference=reference,
        lower=lower,
        work=_work,
        kind="reduce",
        params=(Param("axes", rank=1, mandatory=True), _KEEP),
        layout=Layout.ANY,
        values_kept=name in ("ReduceMax", "ReduceMin"),
        tile=_tiles,
        samples=(
            Sample(((1, 5, 6, 4),), {"axes": [1, 2], "keep_dims": True}, low=-2.0, high=3.0),
            Sample(((2, 3, 4),), {"axes": [2]}, low=-2.0, high=3.0),
            Sample(((2, 3),), {"axes": [0, 1]}, low=0.5, high=2.0),
        ),
    )


_TYPES = rows("T > T : f16 f32 u16 u8 s8")
_WITH_INT = rows("T > T : f16 f32 u16 u8 s8 i32")
_ARG_TYPES = rows("f16|f32 > i32", "u16|u8|s8|n32|i32 > n32|i32")


def _arg_infer(node: Node) -> Shapes:
    return _reduced_shape(node, [axis_in_range(node, node.params["axis"], node.input().rank)])


def _extreme(name: str, onnx_op: str) -> OpDef:
    largest = name == "Argmax"

    def reference(node: Node, arrays: Arrays) -> Results:
        x = arrays[0].astype(np.float64)
        indices = np.argmax(x if largest else -x, axis=node.params["axis"])
        return (indices.reshape(_arg_infer(node)[0]),)

    def lower(node: Node, e: Emitter) -> None:
        x = e.value(0)
        if node.input().dtype is DType.UINT_32:
            x = e.node("Cast", [x], to="float64")
        keep = int(node.params["keep_dims"])
        indices = e.node(onnx_op, [x], axis=e.axis(node.params["axis"]), keepdims=keep)
        if not keep and node.input().rank == 1:
            indices = e.node("Reshape", [indices, e.ints([1])])
        put_integers(node, e, 0, indices)

    return OpDef(
        name=name,
        summary=f"index of the {'largest' if largest else 'smallest'} value along axis, the first if several",
        types=_ARG_TYPES,
        infer=_arg_infer,
        reference=reference,
        lower=lower,
        work=lambda node: _work(node, 2),
        kind="reduce",
        params=(Param("axis", mandatory=True), _KEEP),
        layout=Layout.ANY,
        samples=(
            Sample(((1, 4, 5, 9),), {"axis": 3}),
            Sample(((3, 7),), {"axis": 0, "keep_dims": True}, high=90.0),
        ),
    )


def _topk_infer(node: Node) -> Shapes:
    shape = (*node.shape()[:-1], node.params["k"])
    return shape, shape


def _topk_reference(node: Node, arrays: Arrays) -> Results:
    x, sign = arrays[0], -1 if node.params["largest"] else 1
    # Of equal values the last one comes first.
    order = np.argsort(sign * x[..., ::-1].astype(np.float64), axis=-1, kind="stable")[..., : node.params["k"]]
    order = x.shape[-1] - 1 - order
    return np.take_along_axis(x, order, axis=-1), order


def _topk_lower(node: Node, e: Emitter) -> None:
    count = e.ints([node.params["k"]])
    back = [e.ints([number]) for number in (-1, np.iinfo(np.int64).min, -1, -1)]
    turned = e.node("Slice", [e.value(0), *back])
    values, places = e.nodes("TopK", [turned, count], 2, axis=-1, largest=int(node.params["largest"]))
    e.put(0, values)
    places = e.node("Sub", [e.ints(node.shape()[-1] - 1), places])
    put_integers(node, e, 1, places)


OPS = (
    _reduction("ReduceMax", "the largest value over axes", np.max, _WITH_INT),
    _reduction("ReduceMin", "the smallest value over axes", np.min, _WITH_INT),
    _reduction("ReduceMean", "the mean over axes", np.mean, _TYPES),
    _reduction("ReduceSum", "the sum over axes", np.sum, _WITH_INT),
    _reduction("ReduceProd", "the product over axes", np.prod, _TYPES),
    _reduction("ReduceSumSquare", "the sum of squares over axes", lambda x, **kw: np.sum(x * x, **kw), _TYPES),
    _extreme("Argmax", "ArgMax"),
    _extreme("Argmin", "ArgMin"),
    OpDef(
        name="TopK",
        summary="the k largest (or smallest) of the last axis, of equal ones the last first, and their indices",
        outputs=(Port("out[0]"), Port("out[1]")),
        types=rows("T > T n32|i32 : f16 f32 u16 u8 s8 i32"),
        infer=_topk_infer,
        reference=_topk_reference,
        lower=_topk_lower,
        work=lambda node: _work(node, 2),
        kind="reduce",
        params=(Param("k", mandatory=True), Param("largest", DType.BOOL_8, default=True)),
        constraints=(
            Constraint("k is at least 1 and at most the last axis", lambda n: 1 <= n.params["k"] <= n.shape()[-1]),
        ),
        values_kept=True,
        samples=(Sample(((2, 3, 12),), {"k": 4}), Sample(((2, 9),), {"k": 2, "largest": False})),
    ),
)
