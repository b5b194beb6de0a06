"""CumulativeSum, OneHot and Shape: small ops that language models lean on."""

from __future__ import annotations

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.quant import ScaleOffset
from openhtp.ops._node import Arrays, Emitter, Node, Results, Shapes
from openhtp.ops._opdef import Constraint, OpDef, Param, Sample, rows, vector_work
from openhtp.ops._shapes import axis_in_range


def _sum_infer(node: Node) -> Shapes:
    axis_in_range(node, node.params["axis"], node.input().rank)
    return (node.shape(),)


def _sum_reference(node: Node, arrays: Arrays) -> Results:
    x, axis = arrays[0], node.params["axis"]
    x = np.flip(x, axis) if node.params["reverse"] else x
    out = np.cumsum(x, axis=axis, dtype=x.dtype)
    out = out - x if node.params["exclusive"] else out
    return (np.flip(out, axis) if node.params["reverse"] else out,)


def _sum_lower(node: Node, e: Emitter) -> None:
    axis = e.ints(node.params["axis"])
    exclusive, reverse = int(node.params["exclusive"]), int(node.params["reverse"])
    e.put(0, e.node("CumSum", [e.value(0), axis], exclusive=exclusive, reverse=reverse))


def _one_hot_axis(node: Node) -> int:
    rank = node.input().rank
    axis = node.params["axis"]
    return axis_in_range(node, rank if axis is None else axis, rank + 1)


def _one_hot_infer(node: Node) -> Shapes:
    axis, shape = _one_hot_axis(node), node.shape()
    return ((*shape[:axis], node.params["depth"], *shape[axis:]),)


def _hot_values(node: Node) -> tuple[float, float]:
    """Off and on as real values; integers are stored numbers of a fixed-point output."""
    quant = node.outputs[0].quant

    def real(name: str, default: float) -> float:
        value = node.params[name]
        if isinstance(value, int) and isinstance(quant, ScaleOffset):
            return quant.scale * (value + quant.offset)
        return default if value is None else float(value)

    return real("off_value", 0.0), real("on_value", 1.0)


def _one_hot_reference(node: Node, arrays: Arrays) -> Results:
    off, on = _hot_values(node)
    hot = np.arange(node.params["depth"]) == arrays[0].astype(np.int64)[..., None]
    return (np.moveaxis(np.where(hot, on, off), -1, _one_hot_axis(node)),)


def _one_hot_lower(node: Node, e: Emitter) -> None:
    indices = e.node("Cast", [e.stored(0)], to="int64")
    depth = e.ints(node.params["depth"])
    values = e.floats(_hot_values(node))
    e.put(0, e.node("OneHot", [indices, depth, values], axis=_one_hot_axis(node)))


def _shape_range(node: Node) -> tuple[int, int]:
    rank, end = node.input().rank, node.params["end"]
    return node.params["start"], rank if end is None else min(end, rank)


def _shape_infer(node: Node) -> Shapes:
    begin, end = _shape_range(node)
    return ((max(end - begin, 0),),)


def _shape_reference(node: Node, arrays: Arrays) -> Results:
    begin, end = _shape_range(node)
    return (np.array(node.shape()[begin:end], np.uint32),)


def _shape_lower(node: Node, e: Emitter) -> None:
    begin, end = _shape_range(node)
    e.put_stored(0, e.node("Cast", [e.node("Shape", [e.stored(0)], start=begin, end=end)], to="uint32"))


OPS = (
    OpDef(
        name="CumulativeSum",
        summary="running sums of in[0] along axis",
        types=rows("T > T : f16 f32 u16 u8 i32"),
        infer=_sum_infer,
        reference=_sum_reference,
        lower=_sum_lower,
        kind="move",
        params=(
            Param("axis", mandatory=True),
            Param("exclusive", DType.BOOL_8, default=False),
            Param("reverse", DType.BOOL_8, default=False),
        ),
        samples=(
            Sample(((2, 5, 3),), {"axis": 1}),
            Sample(((2, 5),), {"axis": 1, "exclusive": True, "reverse": True}),
        ),
    ),
    OpDef(
        name="OneHot",
        summary="on_value at the index that in[0] names along a new axis, off_value elsewhere",
        types=rows("n32|i32 > u8|s8|u16|f32|f16"),
        infer=_one_hot_infer,
        reference=_one_hot_reference,
        lower=_one_hot_lower,
        kind="gather",
        params=(
            Param("depth", mandatory=True),
            Param("axis"),
            Param("on_value", DType.FLOAT_32, stored_or_real=True),
            Param("off_value", DType.FLOAT_32, stored_or_real=True),
        ),
        constraints=(Constraint("depth is at least 1", lambda node: node.params["depth"] >= 1),),
        max_rank=3,
        samples=(
            Sample(((4,),), {"depth": 6}, ranges={0: (0, 5)}),
            Sample(((2, 3),), {"depth": 5, "axis": 1, "on_value": 2.0}, ranges={0: (0, 4)}),
        ),
    ),
    OpDef(
        name="Shape",
        summary="sizes of the axes start..end of in[0]",
        types=rows("f16|f32|u16|s16|u8|s8|i32|n32|b > n32"),
        infer=_shape_infer,
        reference=_shape_reference,
        lower=_shape_lower,
        work=vector_work(0),
        kind="reshape",
        params=(Param("start", default=0), Param("end")),
        constraints=(Constraint("start is below end", lambda node: _shape_infer(node)[0][0] > 0),),
        samples=(Sample(((2, 5, 3),), {"start": 1}),),
    ),
)
