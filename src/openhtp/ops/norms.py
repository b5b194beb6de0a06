"""Normalizations: per image, group of channels or layer; by length, root mean square or neighbours.

Batchnorm is a scale and a shift per channel: the statistics are folded into them.
"""

from __future__ import annotations

import math

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._node import Array, Arrays, Emitter, Layout, Node, Results, Shape, Shapes
from openhtp.ops._opdef import WEIGHTED_INPUTS, Constraint, OpDef, Param, Port, Sample, rows, vector_work
from openhtp.ops._shapes import axes_in_range, expect_shape, same_as_input
from openhtp.ops._tiles import split_anywhere, split_but

_EPSILON = Param("epsilon", DType.FLOAT_32, default=1e-12)
_SCALED = (Port("in[0]"), Port("in[1]", optional=True), Port("in[2]", optional=True))
_TYPES = rows("T T T > T : f16 f32", "u16 u8|s8|u16|s16 u8|s8|u16|s16|s32 > u16", "u8 u8|s8 u8|s8|s32 > u8")
# A group's scale and shift may also be floats beside fixed-point data.
_GROUP_TYPES = rows(
    "T T T > T : f16 f32",
    "u16 u8|s8|u16|s16|f32 u8|s8|u16|s16|f32|s32 > u16",
    "u8 u8|s8|f32 u8|s8|f32|s32 > u8",
)
_PLAIN_TYPES = rows("T > T : f16 f32 u16 u8 s8")


def _per_channel(node: Node) -> Shapes:
    channels = node.shape()[-1:]
    expect_shape(node, 1, channels, "one scale per channel")
    expect_shape(node, 2, channels, "one shift per channel")
    return (node.shape(),)


def _scaled(node: Node, arrays: Arrays, out: Array) -> Array:
    out = out * arrays[1] if node.has(1) else out
    return np.asarray(out + arrays[2] if node.has(2) else out)


def _put_scaled(node: Node, e: Emitter, out: str) -> None:
    if node.has(1):
        out = e.node("Mul", [out, e.value(1)])
    if node.has(2):
        out = e.node("Add", [out, e.value(2)])
    e.put(0, out)


def _centered(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(x - x.mean(axis=axes, keepdims=True))


def _emit_centered(e: Emitter, x: str, axes: str) -> str:
    return e.node("Sub", [x, e.node("ReduceMean", [x, axes], keepdims=1)])


def _to_unit_power(node: Node, x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(axis=axes, keepdims=True) + node.params["epsilon"]))


def _emit_to_unit_power(node: Node, e: Emitter, x: str, axes: str) -> str:
    power = e.node("ReduceMean", [e.node("Mul", [x, x]), axes], keepdims=1)
    return e.node("Div", [x, e.node("Sqrt", [e.node("Add", [power, e.floats(node.params["epsilon"])])])])


def _region(node: Node) -> tuple[int, ...]:
    last = node.input().rank - 1
    return {0: tuple(range(1, last)), 1: (last,), 2: tuple(range(1, last + 1))}[node.params["region"]]


def _instance_reference(node: Node, arrays: Arrays) -> Results:
    x, axes = arrays[0], _region(node)
    if node.params["mode"] == 0:
        x = _centered(x, axes)
    if node.params["normalize_variance"]:
        x = _to_unit_power(node, x, axes)
    return (_scaled(node, arrays, x),)


def _instance_lower(node: Node, e: Emitter) -> None:
    x, axes = e.value(0), e.ints([e.axis(axis) for axis in _region(node)])
    if node.params["mode"] == 0:
        x = _emit_centered(e, x, axes)
    if node.params["normalize_variance"]:
        x = _emit_to_unit_power(node, e, x, axes)
    _put_scaled(node, e, x)


def _grouped_shape(node: Node) -> Shape:
    shape, groups = node.shape(), node.params["group"]
    return shape[0], math.prod(shape[1:-1]), groups, shape[-1] // groups


def _group_reference(node: Node, arrays: Arrays) -> Results:
    x = _to_unit_power(node, _centered(arrays[0].reshape(_grouped_shape(node)), (1, 3)), (1, 3))
    return (_scaled(node, arrays, x.reshape(node.shape())),)


def _group_lower(node: Node, e: Emitter) -> None:
    x = e.node("Reshape", [e.value(0), e.ints(_grouped_shape(node))])
    axes = e.ints([1, 3])
    x = _emit_to_unit_power(node, e, _emit_centered(e, x, axes), axes)
    _put_scaled(node, e, e.node("Reshape", [x, e.ints(node.shape())]))


def _length_axes(node: Node) -> tuple[int, ...]:
    axes = node.ints("axes") if node.params["axes"] is not None else (node.params["axis"],)
    return axes_in_range(node, axes, node.input().rank)


def _length_reference(node: Node, arrays: Arrays) -> Results:
    square = (arrays[0] ** 2).sum(axis=_length_axes(node), keepdims=True)
    return (arrays[0] / np.sqrt(np.maximum(square, node.params["epsilon"])),)


def _length_lower(node: Node, e: Emitter) -> None:
    x, axes = e.value(0), e.ints([e.axis(axis) for axis in _length_axes(node)])
    square = e.node("ReduceSumSquare", [x, axes], keepdims=1)
    e.put(0, e.node("Div", [x, e.node("Sqrt", [e.node("Max", [square, e.floats(node.params["epsilon"])])])]))


def _axes(node: Node) -> tuple[int, ...]:
    return axes_in_range(node, node.ints("axes"), node.input().rank)


def _per_axes(node: Node) -> Shapes:
    sizes = tuple(node.shape()[axis] for axis in _axes(node))
    expect_shape(node, 1, sizes, "sizes of the normalized axes")
    expect_shape(node, 2, sizes, "sizes of the normalized axes")
    return (node.shape(),)


def _axes_are_last(node: Node) -> bool:
    axes, rank = _axes(node), node.input().rank
    return axes == tuple(range(rank - len(axes), rank))


def _rms_lower(node: Node, e: Emitter) -> None:
    _put_scaled(node, e, _emit_to_unit_power(node, e, e.value(0), e.ints(_axes(node))))


def _broadcast_shape(node: Node) -> Shape:
    axes = _axes(node)
    return tuple(size if axis in axes else 1 for axis, size in enumerate(node.shape()))


def _layer_reference(node: Node, arrays: Arrays) -> Results:
    out = _to_unit_power(node, _centered(arrays[0], _axes(node)), _axes(node))
    over = [arrays[0], *(array.reshape(_broadcast_shape(node)) if array.size else array for array in arrays[1:])]
    return (_scaled(node, over, out),)


def _layer_lower(node: Node, e: Emitter) -> None:
    axes = _axes(node)
    if _axes_are_last(node):
        sizes = tuple(node.shape()[axis] for axis in axes)
        scale = e.value(1) if node.has(1) else e.const(np.ones(sizes, np.float32))
        inputs = [e.value(0), scale] + ([e.value(2)] if node.has(2) else [])
        return e.put(0, e.node("LayerNormalization", inputs, axis=axes[0], epsilon=node.params["epsilon"]))
    x, over = e.value(0), e.ints(axes)
    out = _emit_to_unit_power(node, e, _emit_centered(e, x, over), over)
    for index, onnx_op in ((1, "Mul"), (2, "Add")):
        if node.has(index):
            shape = e.ints(_broadcast_shape(node))
            out = e.node(onnx_op, [out, e.node("Reshape", [e.value(index), shape])])
    return e.put(0, out)


def _lrn_reference(node: Node, arrays: Arrays) -> Results:
    x, radius = arrays[0], node.params["radius"]
    axes = (x.ndim - 1,) if node.params["region"] == 0 else tuple(range(1, x.ndim - 1))
    total = x * x
    for axis in axes:
        pads = [(radius, radius) if other == axis else (0, 0) for other in range(x.ndim)]
        wide = np.pad(total, pads)
        shifted = [np.take(wide, range(k, k + x.shape[axis]), axis=axis) for k in range(2 * radius + 1)]
        total = np.sum(shifted, axis=0)
    return (x / (node.params["bias"] + node.params["alpha"] * total) ** node.params["beta"],)


def _lrn_lower(node: Node, e: Emitter) -> None:
    x, width, params = e.value(0), 2 * node.params["radius"] + 1, node.params
    if params["region"] == 0:
        # ONNX divides alpha by the number of channels in the window; QNN does not.
        out = e.node(
            "LRN", [x], size=width, alpha=params["alpha"] * width, beta=params["beta"], bias=params["bias"]
        )
        return e.put(0, out)
    spatial = node.input().rank - 2
    pads = [params["radius"]] * (2 * spatial)
    mean = e.node(
        "AveragePool", [e.node("Mul", [x, x])], kernel_shape=[width] * spatial, pads=pads, count_include_pad=1
    )
    total = e.node("Mul", [mean, e.floats(params["alpha"] * width**spatial)])
    base = e.node("Add", [total, e.floats(params["bias"])])
    return e.put(0, e.node("Div", [x, e.node("Pow", [base, e.floats(params["beta"])])]))


OPS = (
    OpDef(
        name="InstanceNorm",
        summary="in[0] normalized per image over region, times in[1], plus in[2]",
        inputs=WEIGHTED_INPUTS,
        types=_TYPES,
        infer=_per_channel,
        reference=_instance_reference,
        lower=_instance_lower,
        work=vector_work(8),
        kind="norm",
        params=(
            _EPSILON,
            Param("mode", default=0, choices={"MU_SIGMA": 0, "RMS": 1}),
            Param("normalize_variance", DType.BOOL_8, default=True),
            Param("region", default=0, choices={"ACROSS_SPATIAL": 0, "ACROSS_CHANNEL": 1, "ACROSS_ALL": 2}),
        ),
        constraints=(Constraint("the input has at least 3 axes", lambda node: node.input().rank > 2),),
        layout=Layout.ANY,
        samples=(
            Sample(((2, 5, 4, 6), (6,), (6,)), {"epsilon": 1e-5}, static=(1, 2)),
            Sample(((1, 5, 4, 6), (6,), None), {"region": 1, "mode": 1, "epsilon": 1e-3}, static=(1,)),
            # As the vendor's validator wants it.
            Sample(((1, 5, 4, 6), (6,), (6,)), {"epsilon": 1e-5}, static=(1, 2)),
        ),
    ),
    OpDef(
        name="GroupNorm",
        summary="in[0] normalized per image and group of channels, times in[1], plus in[2]",
        inputs=_SCALED,
        types=_GROUP_TYPES,
        infer=_per_channel,
        reference=_group_reference,
        lower=_group_lower,
        work=vector_work(8),
        kind="norm",
        params=(Param("epsilon", DType.FLOAT_32, mandatory=True), Param("group", mandatory=True)),
        constraints=(
            Constraint(
                "the groups divide the channels",
                lambda node: node.params["group"] > 0 and node.shape()[-1] % node.params["group"] == 0,
            ),
        ),
        samples=(Sample(((2, 3, 4, 6), (6,), (6,)), {"epsilon": 1e-5, "group": 3}, static=(1, 2)),),
    ),
    OpDef(
        name="L2Norm",
        summary="out = in[0] / sqrt(max(sum of squares over axes, epsilon))",
        types=_PLAIN_TYPES,
        infer=same_as_input,
        reference=_length_reference,
        lower=_length_lower,
        work=vector_work(6),
        kind="norm",
        params=(Param("axis", default=0), Param("axes", rank=1), _EPSILON),
        layout=Layout.ANY,
        samples=(Sample(((1, 3, 4, 6),), {"axis": 3}), Sample(((2, 3, 4),), {"axes": [1, 2]})),
    ),
    OpDef(
        name="RmsNorm",
        summary="out = in[0] / sqrt(mean of squares over axes + epsilon) * in[1] + in[2]",
        inputs=_SCALED,
        types=_TYPES,
        infer=_per_axes,
        reference=lambda node, arrays: (_scaled(node, arrays, _to_unit_power(node, arrays[0], _axes(node))),),
        lower=_rms_lower,
        work=vector_work(6),
        kind="norm",
        params=(Param("epsilon", DType.FLOAT_32, default=1e-6), Param("axes", rank=1, mandatory=True)),
        constraints=(Constraint("axes are the last ones", _axes_are_last),),
        samples=(
            Sample(((2, 5, 16), (16,), None), {"axes": [2]}, static=(1,)),
            Sample(((2, 5, 16), (16,), (16,)), {"axes": [2]}, static=(1, 2)),
        ),
    ),
    OpDef(
        name="Lrn",
        summary="out = in[0] / (bias + alpha * sum of squares within radius) ^ beta",
        types=_PLAIN_TYPES,
        infer=same_as_input,
        reference=_lrn_reference,
        lower=_lrn_lower,
        work=vector_work(20),
        kind="norm",
        params=(
            Param("alpha", DType.FLOAT_32, default=1.0),
            Param("beta", DType.FLOAT_32, default=0.5),
            Param("bias", DType.FLOAT_32, default=1.0),
            Param("radius", DType.INT_32, mandatory=True),
            Param("region", default=0, choices={"ACROSS_CHANNEL": 0, "WITHIN_CHANNEL": 1}),
        ),
        constraints=(
            Constraint("radius is at least 0", lambda node: node.params["radius"] >= 0),
            Constraint("the input has 4 axes", lambda node: node.input().rank == 4),
        ),
        layout=Layout.CHANNEL_FIRST,
        samples=(
            Sample(((1, 3, 4, 7),), {"radius": 2, "alpha": 0.3, "beta": 0.75}),
            Sample(((1, 5, 6, 2),), {"radius": 1, "alpha": 0.2, "region": 1}),
        ),
    ),
    OpDef(
        name="LayerNorm",
        summary="out = (in[0] - mean) / sqrt(variance + epsilon) * in[1] + in[2], statistics over axes",
        inputs=_SCALED,
        types=rows("T T T > T : f16 f32", "u16 u8|u16|s16 u8|u16|s16|s32 > u16", "u8 u8 u8|s32 > u8"),
        infer=_per_axes,
        reference=_layer_reference,
        lower=_layer_lower,
        work=vector_work(8),
        kind="norm",
        params=(Param("epsilon", DType.FLOAT_32, default=0.001), Param("axes", rank=1, mandatory=True)),
        tile=lambda node: split_but(node, _axes(node)),
        samples=(
            Sample(((2, 5, 16), (16,), (16,)), {"axes": [2], "epsilon": 1e-5}, static=(1, 2)),
            Sample(((1, 4, 4, 6), (4, 6), None), {"axes": [2, 3]}, static=(1,)),
            Sample(((1, 4, 5, 6),), {"axes": [1]}),
            # As the vendor's validator wants it.
            Sample(((1, 2, 5, 16), (16,), (16,)), {"axes": [3], "epsilon": 1e-5}, static=(1, 2)),
        ),
    ),
    OpDef(
        name="Batchnorm",
        summary="out = in[0] * in[1] + in[2], per channel of the last axis",
        inputs=WEIGHTED_INPUTS,
        types=rows("T T T > T : f16 f32", "u16 u8|u16|s16 u8|s32 > u16", "u8 u8 u8|s32 > u8", "s8 s8 s32 > s8"),
        infer=_per_channel,
        reference=lambda node, arrays: (_scaled(node, arrays, arrays[0]),),
        lower=lambda node, e: _put_scaled(node, e, e.value(0)),
        work=vector_work(2),
        kind="batchnorm",
        layout=Layout.ANY,
        takes_activation=True,
        tile=split_anywhere,
        samples=(
            Sample(((1, 5, 4, 6), (6,), (6,)), static=(1, 2), ranges={1: (0.5, 2.0)}),
            Sample(((3, 8), (8,), None), static=(1,), ranges={1: (0.5, 2.0)}),
        ),
    ),
)
