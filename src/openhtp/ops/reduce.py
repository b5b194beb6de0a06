"""Reductions over axes: largest, smallest, mean, sum, product, sum of squares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import OpDef, Param, Port, Sample, Work, touched_bytes
from openhtp.ops._shapes import axes_in_range
from openhtp.ops._tiles import TileAxis
from openhtp.ops._types import TypeRow, rows

PARAMS = (Param("axes", rank=1, mandatory=True), Param("keep_dims", DType.BOOL_8, default=False))


def _axes(node: Node) -> tuple[int, ...]:
    return axes_in_range(node, node.ints("axes"), node.input().rank)


def _infer(node: Node) -> tuple[Shape, ...]:
    axes = _axes(node)
    if node.params["keep_dims"]:
        return (tuple(1 if axis in axes else size for axis, size in enumerate(node.shape())),)
    return (tuple(size for axis, size in enumerate(node.shape()) if axis not in axes) or (1,),)


def _work(node: Node) -> Work:
    read, written = touched_bytes(node)
    return Work(
        vector_ops=max(node.input().elements, node.outputs[0].elements), bytes_read=read, bytes_written=written
    )


def _tiles(node: Node) -> tuple[TileAxis, ...]:
    others = [axis for axis in range(node.input().rank) if axis not in _axes(node)]
    places = others if node.params["keep_dims"] else range(len(others))
    return tuple(TileAxis(axis=place, inputs=(axis,)) for place, axis in zip(places, others, strict=True))


def _reduction(name: str, summary: str, compute: Callable[..., Any], types: tuple[TypeRow, ...]) -> OpDef:
    def reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
        result = np.asarray(compute(arrays[0], axis=_axes(node), keepdims=node.params["keep_dims"]))
        return (result.astype(arrays[0].dtype).reshape(_infer(node)[0]),)

    def lower(node: Node, e: Emitter) -> None:
        axes = e.const(np.array([e.axis(axis) for axis in _axes(node)], np.int64))
        out = e.node(name, [e.value(0), axes], keepdims=int(node.params["keep_dims"]))
        if not node.params["keep_dims"] and len(_axes(node)) == node.input().rank:
            out = e.node("Reshape", [out, e.const(np.array([1], np.int64))])
        e.put(0, out)

    return OpDef(
        name=name,
        summary=summary,
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"),),
        types=types,
        infer=_infer,
        reference=reference,
        lower=lower,
        work=_work,
        kind="reduce",
        params=PARAMS,
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

OPS = (
    _reduction("ReduceMax", "the largest value over axes", np.max, _WITH_INT),
    _reduction("ReduceMin", "the smallest value over axes", np.min, _WITH_INT),
    _reduction("ReduceMean", "the mean over axes", np.mean, _TYPES),
    _reduction("ReduceSum", "the sum over axes", np.sum, _WITH_INT),
    _reduction("ReduceProd", "the product over axes", np.prod, _TYPES),
    _reduction("ReduceSumSquare", "the sum of squares over axes", lambda x, **kw: np.sum(x * x, **kw), _TYPES),
)
