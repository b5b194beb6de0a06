"""Layer normalization over chosen axes, with optional scale and shift."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import OpDef, Param, Port, Sample, vector_work
from openhtp.ops._shapes import axes_in_range, expect_shape
from openhtp.ops._tiles import TileAxis, split_but
from openhtp.ops._types import rows


def _axes(node: Node) -> tuple[int, ...]:
    return axes_in_range(node, node.ints("axes"), node.input().rank)


def _infer(node: Node) -> tuple[Shape, ...]:
    sizes = tuple(node.shape()[axis] for axis in _axes(node))
    expect_shape(node, 1, sizes, "sizes of the normalized axes")
    expect_shape(node, 2, sizes, "sizes of the normalized axes")
    return (node.shape(),)


def _over_axes(node: Node) -> Shape:
    axes = _axes(node)
    return tuple(size if axis in axes else 1 for axis, size in enumerate(node.shape()))


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    x, axes = arrays[0], _axes(node)
    centered = x - x.mean(axis=axes, keepdims=True)
    out = centered / np.sqrt((centered**2).mean(axis=axes, keepdims=True) + node.params["epsilon"])
    if node.has(1):
        out = out * arrays[1].reshape(_over_axes(node))
    if node.has(2):
        out = out + arrays[2].reshape(_over_axes(node))
    return (out,)


def _lower(node: Node, e: Emitter) -> None:
    axes, rank = _axes(node), node.input().rank
    if axes == tuple(range(rank - len(axes), rank)):
        sizes = tuple(node.shape()[axis] for axis in axes)
        scale = e.value(1) if node.has(1) else e.const(np.ones(sizes, np.float32))
        inputs = [e.value(0), scale] + ([e.value(2)] if node.has(2) else [])
        e.put(0, e.node("LayerNormalization", inputs, axis=axes[0], epsilon=node.params["epsilon"]))
        return
    x, over = e.value(0), e.const(np.array(axes, np.int64))
    centered = e.node("Sub", [x, e.node("ReduceMean", [x, over], keepdims=1)])
    variance = e.node("ReduceMean", [e.node("Mul", [centered, centered]), over], keepdims=1)
    epsilon = e.const(np.array(node.params["epsilon"], np.float32))
    out = e.node("Div", [centered, e.node("Sqrt", [e.node("Add", [variance, epsilon])])])
    for index, onnx_op in ((1, "Mul"), (2, "Add")):
        if node.has(index):
            shape = e.const(np.array(_over_axes(node), np.int64))
            out = e.node(onnx_op, [out, e.node("Reshape", [e.value(index), shape])])
    e.put(0, out)


def _other_axes(node: Node) -> tuple[TileAxis, ...]:
    return split_but(node, _axes(node))


OPS = (
    OpDef(
        name="LayerNorm",
        summary="out = (in[0] - mean) / sqrt(variance + epsilon) * in[1] + in[2], statistics over axes",
        inputs=(Port("in[0]"), Port("in[1]", optional=True), Port("in[2]", optional=True)),
        outputs=(Port("out[0]"),),
        types=rows("T T T > T : f16 f32", "u16 u8|u16|s16 u8|u16|s16|s32 > u16", "u8 u8 u8|s32 > u8"),
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=vector_work(8),
        kind="norm",
        params=(Param("epsilon", DType.FLOAT_32, default=0.001), Param("axes", rank=1, mandatory=True)),
        tile=_other_axes,
        samples=(
            Sample(((2, 5, 16), (16,), (16,)), {"axes": [2], "epsilon": 1e-5}, static=(1, 2)),
            Sample(((1, 4, 4, 6), (4, 6), None), {"axes": [2, 3]}, static=(1,)),
            Sample(((1, 4, 5, 6),), {"axes": [1]}),
            # As the vendor's validator wants it.
            Sample(((1, 2, 5, 16), (16,), (16,)), {"axes": [3], "epsilon": 1e-5}, static=(1, 2)),
        ),
    ),
)
