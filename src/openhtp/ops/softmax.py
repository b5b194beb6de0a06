"""Softmax and its logarithm along one axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._onnx import OnnxRule
from openhtp.ops._opdef import OpDef, Param, Port, Sample, vector_work
from openhtp.ops._rows import is_wide_result, settled_softmax
from openhtp.ops._shapes import axis_in_range, last_axis
from openhtp.ops._tiles import TileAxis, split_but
from openhtp.ops._types import rows

_PARAMS = (
    Param("axis", default=last_axis),
    Param("beta", DType.FLOAT_32, default=1.0),
)


def _infer(node: Node) -> tuple[Shape, ...]:
    axis_in_range(node, node.params["axis"], node.input().rank)
    return (node.shape(),)


def _log_softmax(node: Node, x: Array) -> Array:
    axis = node.params["axis"]
    scaled = node.params["beta"] * x
    shifted = scaled - scaled.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


def _softmax_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    return (np.exp(_log_softmax(node, arrays[0])),)


def _log_softmax_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    return (_log_softmax(node, arrays[0]),)


def _lower_as(onnx_op: str, node: Node, e: Emitter) -> None:
    x = e.value(0)
    if node.params["beta"] != 1.0:
        x = e.node("Mul", [x, e.const(np.array(node.params["beta"], np.float32))])
    if onnx_op == "Softmax" and is_wide_result(node):
        return e.put(0, settled_softmax(e, x, e.axis(node.params["axis"])))
    if onnx_op == "Softmax" and node.params["beta"] == 1.0 and node.outputs[0].dtype.is_fixed_point:
        # Adding a number to all changes nothing but that the runtime then computes in floats: its 8-bit kernel is
        # a step off where results are near 0 or 1, and far off with steps finer than 1/512.
        x = e.node("Add", [x, e.const(np.array(1.0, np.float32))])
    return e.put(0, e.node(onnx_op, [x], axis=e.axis(node.params["axis"])))


def _other_axes(node: Node) -> tuple[TileAxis, ...]:
    return split_but(node, (node.params["axis"],))


_SAMPLES = (
    Sample(((2, 3, 10),), low=-4.0, high=4.0),
    Sample(((1, 4, 5, 6),), {"axis": 1, "beta": 0.5}, low=-4.0, high=4.0),
    # Many numbers of about the same size: results are small, and so are their steps.
    Sample(((1, 2, 3, 40),), low=-1.0, high=1.0),
)

OPS = (
    OpDef(
        name="Softmax",
        summary="out = exp(beta * in[0]) / sum over axis of exp(beta * in[0])",
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"),),
        types=rows("T > T : f16 f32 u16 u8 s8", "u16|u8|s8 > f32"),
        infer=_infer,
        reference=_softmax_reference,
        result_range=lambda node: (0.0, 1.0),
        lower=lambda node, e: _lower_as("Softmax", node, e),
        work=vector_work(10),
        kind="softmax",
        params=_PARAMS,
        layout=Layout.ANY,
        tile=_other_axes,
        onnx=(OnnxRule("Softmax", attrs={"axis": "axis"}),),
        samples=_SAMPLES,
    ),
    OpDef(
        name="LogSoftmax",
        summary="out = beta * in[0] - log(sum over axis of exp(beta * in[0]))",
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"),),
        types=rows("T > T : f16 f32 u16 u8 s8"),
        infer=_infer,
        reference=_log_softmax_reference,
        lower=lambda node, e: _lower_as("LogSoftmax", node, e),
        work=vector_work(12),
        kind="softmax",
        params=_PARAMS,
        layout=Layout.ANY,
        tile=_other_axes,
        onnx=(OnnxRule("LogSoftmax", attrs={"axis": "axis"}),),
        # The last one is as the vendor's validator wants it.
        samples=(*_SAMPLES, Sample(((1, 3, 4, 10),), {"axis": 3, "beta": 1.0})),
    ),
)
