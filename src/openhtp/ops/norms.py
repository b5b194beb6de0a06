"""Normalizations: per image, per group of channels, by length, by root mean square, by neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import Constraint, OpDef, Param, Port, Sample, vector_work
from openhtp.ops._shapes import axes_in_range, expect_shape, same_as_input
from openhtp.ops._types import rows

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


def _number(e: Emitter, value: float) -> str:
    return e.const(np.array(value, np.float32))


def _axes_const(e: Emitter, axes: Sequence[int]) -> str:
    return e.const(np.array([e.axis(axis) for axis in axes], np.int64))


def _per_channel(node: Node) -> tuple[Shape, ...]:
    channels = node.shape()[-1:]
    expect_shape(node, 1, channels, "one scale per channel")
    expect_shape(node, 2, channels, "one shift per channel")
    return (node.shape(),)


def _scaled(node: Node, arrays: Sequence[Array], out: Array) -> Array:
    out = out * arrays[1] if node.has(1) else out
    return np.asarray(out + arrays[2] if node.has(2) else out)


def _put_scaled(node: Node, e: Emitter, out: str) -> None:
    if node.has(1):
        out = e.node("Mul", [out, e.value(1)])
    if node.has(2):
        out = e.node("Add", [out, e.value(2)])
    e.put(0, out)


def _region(node: Node) -> tuple[int, ...]:
    last = node.input().rank - 1
    return {0: tuple(range(1, last)), 1: (last,), 2: tuple(range(1, last + 1))}[node.params["region"]]


def _instance_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    x, axes = arrays[0], _region(node)
    if node.params["mode"] == 0:
        x = x - x.mean(axis=axes, keepdims=True)
    if node.params["normalize_variance"]:
        x = x / np.sqrt((x * x).mean(axis=axes, keepdims=True) + node.params["epsilon"])
    return (_scaled(node, arrays, x),)


def _instance_lower(node: Node, e: Emitter) -> None:
    x, axes = e.value(0), _axes_const(e, _region(node))
    if node.params["mode"] == 0:
        x = e.node("Sub", [x, e.node("ReduceMean", [x, axes], keepdims=1)])
    if node.params["normalize_variance"]:
        power = e.node("ReduceMean", [e.node("Mul", [x, x]), axes], keepdims=1)
        x = e.node("Div", [x, e.node("Sqrt", [e.node("Add", [power, _number(e, node.params["epsilon"])])])])
    _put_scaled(node, e, x)


def _grouped(node: Node) -> Shape:
    shape, groups = node.shape(), node.params["group"]
    return shape[0], int(np.prod(shape[1:-1], dtype=np.int64)), groups, shape[-1] // groups


def _group_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    x = arrays[0].reshape(_grouped(node))
    x = x - x.mean(axis=(1, 3), keepdims=True)
    x = x / np.sqrt((x * x).mean(axis=(1, 3), keepdims=True) + node.params["epsilon"])
    return (_scaled(node, arrays, x.reshape(node.shape())),)


def _group_lower(node: Node, e: Emitter) -> None:
    x = e.node("Reshape", [e.value(0), e.const(np.array(_grouped(node), np.int64))])
    axes = e.const(np.array([1, 3], np.int64))
    x = e.node("Sub", [x, e.node("ReduceMean", [x, axes], keepdims=1)])
    power = e.node("ReduceMean", [e.node("Mul", [x, x]), axes], keepdims=1)
    x = e.node("Div", [x, e.node("Sqrt", [e.node("Add", [power, _number(e, node.params["epsilon"])])])])
    _put_scaled(node, e, e.node("Reshape", [x, e.const(np.array(node.shape(), np.int64))]))


def _length_axes(node: Node) -> tuple[int, ...]:
    axes = node.ints("axes") if node.params["axes"] is not None else (node.params["axis"],)
    return axes_in_range(node, axes, node.input().rank)


def _length_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    square = (arrays[0] ** 2).sum(axis=_length_axes(node), keepdims=True)
    return (arrays[0] / np.sqrt(np.maximum(square, node.params["epsilon"])),)


def _length_lower(node: Node, e: Emitter) -> None:
    x = e.value(0)
    square = e.node("ReduceSumSquare", [x, _axes_const(e, _length_axes(node))], keepdims=1)
    e.put(0, e.node("Div", [x, e.node("Sqrt", [e.node("Max", [square, _number(e, node.params["epsilon"])])])]))


def _rms_infer(node: Node) -> tuple[Shape, ...]:
    sizes = tuple(node.shape()[axis] for axis in _rms_axes(node))
    expect_shape(node, 1, sizes, "sizes of the normalized axes")
    expect_shape(node, 2, sizes, "sizes of the normalized axes")
    return (node.shape(),)


def _rms_axes(node: Node) -> tuple[int, ...]:
    return axes_in_range(node, node.ints("axes"), node.input().rank)


def _rms_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    power = (arrays[0] ** 2).mean(axis=_rms_axes(node), keepdims=True)
    return (_scaled(node, arrays, arrays[0] / np.sqrt(power + node.params["epsilon"])),)


def _rms_lower(node: Node, e: Emitter) -> None:
    x, axes = e.value(0), e.const(np.array(_rms_axes(node), np.int64))
    power = e.node("ReduceMean", [e.node("Mul", [x, x]), axes], keepdims=1)
    root = e.node("Sqrt", [e.node("Add", [power, _number(e, node.params["epsilon"])])])
    _put_scaled(node, e, e.node("Div", [x, root]))


def _trailing(node: Node) -> bool:
    axes, rank = _rms_axes(node), node.input().rank
    return axes == tuple(range(rank - len(axes), rank))


def _lrn_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
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
    total = e.node("Mul", [mean, _number(e, params["alpha"] * width**spatial)])
    base = e.node("Add", [total, _number(e, params["bias"])])
    return e.put(0, e.node("Div", [x, e.node("Pow", [base, _number(e, params["beta"])])]))


OPS = (
    OpDef(
        name="InstanceNorm",
        summary="in[0] normalized per image over region, times in[1], plus in[2]",
        inputs=(Port("in[0]"), Port("in[1]"), Port("in[2]", optional=True)),
        outputs=(Port("out[0]"),),
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
        outputs=(Port("out[0]"),),
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
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"),),
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
        outputs=(Port("out[0]"),),
        types=_TYPES,
        infer=_rms_infer,
        reference=_rms_reference,
        lower=_rms_lower,
        work=vector_work(6),
        kind="norm",
        params=(Param("epsilon", DType.FLOAT_32, default=1e-6), Param("axes", rank=1, mandatory=True)),
        constraints=(Constraint("axes are the last ones", _trailing),),
        samples=(
            Sample(((2, 5, 16), (16,), None), {"axes": [2]}, static=(1,)),
            Sample(((2, 5, 16), (16,), (16,)), {"axes": [2]}, static=(1, 2)),
        ),
    ),
    OpDef(
        name="Lrn",
        summary="out = in[0] / (bias + alpha * sum of squares within radius) ^ beta",
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"),),
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
)
