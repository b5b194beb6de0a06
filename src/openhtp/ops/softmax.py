"""Softmax over one axis, plain, as a logarithm, with added numbers or with entries left out.

SelectSoftmax is what the HTP makes of Softmax(Where(mask, x, min(x) + B)). QNN has no such op in its public list;
the backend builds it inside when it recognises the pattern, and so does the engine here. Masked entries are
exactly 0 and cost no range of the encoding, which is the point of it.
"""

from __future__ import annotations

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._elementwise import truth_of
from openhtp.ops._node import Array, Arrays, Emitter, Layout, Node, Results, Shapes
from openhtp.ops._opdef import TWO_INPUTS, Constraint, OnnxRule, OpDef, Param, Sample, rows, vector_work
from openhtp.ops._shapes import axis_in_range, broadcast, expect_rank, expect_shape, last_axis, refuse
from openhtp.ops._tiles import split_anywhere, split_but

_PARAMS = (Param("axis", default=last_axis), Param("beta", DType.FLOAT_32, default=1.0))


def _infer(node: Node) -> Shapes:
    axis_in_range(node, node.params["axis"], node.input().rank)
    return (node.shape(),)


def _log_softmax(node: Node, x: Array) -> Array:
    axis = node.params["axis"]
    scaled = node.params["beta"] * x
    shifted = scaled - scaled.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


def _settled_softmax(e: Emitter, x: str, axis: int) -> str:
    """Softmax of 16-bit numbers, summed in double precision so that the order of the sum does not show in float.

    An HTP adds integers, so a row's result depends neither on how many rows are computed with it nor on the
    order of its numbers. Graphs of a language model for 1 and for 128 tokens rely on that. The runtime sums a
    softmax's divisor lane by lane.
    """
    axes = e.ints([axis])
    power = e.node("Exp", [e.node("Sub", [x, e.node("ReduceMax", [x, axes], keepdims=1)])])
    total = e.node("ReduceSum", [e.node("Cast", [power], to="float64"), axes], keepdims=1)
    return e.node("Div", [power, e.node("Cast", [total], to="float32")])


def _lower_as(onnx_op: str, node: Node, e: Emitter) -> None:
    x = e.value(0)
    if node.params["beta"] != 1.0:
        x = e.node("Mul", [x, e.floats(node.params["beta"])])
    if onnx_op == "Softmax" and node.is_wide():
        return e.put(0, _settled_softmax(e, x, e.axis(node.params["axis"])))
    if onnx_op == "Softmax" and node.params["beta"] == 1.0 and node.outputs[0].dtype.is_fixed_point:
        # The same number added to all inputs leaves the result as it is, and makes the runtime compute in floats:
        # its 8-bit kernel is a step off where results are near 0 or 1, and far off with steps finer than 1/512.
        x = e.node("Add", [x, e.floats(1.0)])
    return e.put(0, e.node(onnx_op, [x], axis=e.axis(node.params["axis"])))


_SAMPLES = (
    Sample(((2, 3, 10),), low=-4.0, high=4.0),
    Sample(((1, 4, 5, 6),), {"axis": 1, "beta": 0.5}, low=-4.0, high=4.0),
    # Many numbers of about the same size: results are small, and so are their steps.
    Sample(((1, 2, 3, 40),), low=-1.0, high=1.0),
)
_LOWEST = -1e30


def _select_infer(node: Node) -> Shapes:
    if broadcast(node, node.shape(0), node.shape(1)) != node.shape(0):
        refuse(node, f"mask {list(node.shape(1))} does not broadcast to the input's {list(node.shape(0))}")
    return (node.shape(),)


def _select_reference(node: Node, arrays: Arrays) -> Results:
    keeps = (arrays[1] == 0) if node.params["keep_zero"] else (arrays[1] != 0)
    x = np.where(keeps, arrays[0], -np.inf)
    power = np.where(keeps, np.exp(x - np.max(x, axis=-1, keepdims=True, initial=-1e300)), 0.0)
    total = power.sum(axis=-1, keepdims=True)
    return (power / np.where(total == 0, 1.0, total),)


def _select_lower(node: Node, e: Emitter) -> None:
    truth = truth_of(node, e, 1)
    keeps = e.node("Not", [truth]) if node.params["keep_zero"] else truth
    chosen = e.node("Where", [keeps, e.value(0), e.floats(_LOWEST)])
    # A row without kept entries would come out even; its entries are masked, so they must be 0.
    zero = e.floats(0.0)
    shares = _settled_softmax(e, chosen, -1) if node.is_wide() else e.node("Softmax", [chosen], axis=-1)
    e.put(0, e.node("Where", [keeps, shares, zero]))


def _masked_infer(node: Node) -> Shapes:
    batch, _, _, channels = expect_rank(node, 0, 4)
    expect_shape(node, 1, (batch, channels), "one addend per image and channel")
    return (node.shape(),)


def _masked_reference(node: Node, arrays: Arrays) -> Results:
    x = arrays[0] + arrays[1][:, None, None, :]
    power = np.exp(x - x.max(axis=-1, keepdims=True))
    return (power / power.sum(axis=-1, keepdims=True),)


def _masked_lower(node: Node, e: Emitter) -> None:
    mask = e.node("Unsqueeze", [e.value(1), e.ints([1, 2])])
    e.put(0, e.node("Softmax", [e.node("Add", [e.value(0), mask])], axis=-1))


OPS = (
    OpDef(
        name="Softmax",
        summary="out = exp(beta * in[0]) / sum over axis of exp(beta * in[0])",
        types=rows("T > T : f16 f32 u16 u8 s8", "u16|u8|s8 > f32"),
        infer=_infer,
        reference=lambda node, arrays: (np.exp(_log_softmax(node, arrays[0])),),
        result_range=lambda node: (0.0, 1.0),
        lower=lambda node, e: _lower_as("Softmax", node, e),
        work=vector_work(10),
        kind="softmax",
        params=_PARAMS,
        layout=Layout.ANY,
        tile=lambda node: split_but(node, (node.params["axis"],)),
        onnx=(OnnxRule("Softmax", attrs={"axis": "axis"}),),
        samples=_SAMPLES,
    ),
    OpDef(
        name="LogSoftmax",
        summary="out = beta * in[0] - log(sum over axis of exp(beta * in[0]))",
        types=rows("T > T : f16 f32 u16 u8 s8"),
        infer=_infer,
        reference=lambda node, arrays: (_log_softmax(node, arrays[0]),),
        lower=lambda node, e: _lower_as("LogSoftmax", node, e),
        work=vector_work(12),
        kind="softmax",
        params=_PARAMS,
        layout=Layout.ANY,
        tile=lambda node: split_but(node, (node.params["axis"],)),
        onnx=(OnnxRule("LogSoftmax", attrs={"axis": "axis"}),),
        # The last one is as the vendor's validator wants it.
        samples=(*_SAMPLES, Sample(((1, 3, 4, 10),), {"axis": 3, "beta": 1.0})),
    ),
    OpDef(
        name="SelectSoftmax",
        summary="softmax over the last axis of in[0] where in[1] is not 0 (or is 0, if keep_zero); 0 elsewhere",
        inputs=TWO_INPUTS,
        types=rows("u16 u8|u16|b > u16", "u8 u8|u16|b > u8"),
        infer=_select_infer,
        reference=_select_reference,
        lower=_select_lower,
        work=vector_work(12),
        kind="softmax",
        params=(Param("keep_zero", DType.BOOL_8, default=False),),
        tile=lambda node: split_anywhere(node)[:-1],
        samples=(
            Sample(((2, 2, 3, 8), (2, 1, 3, 8)), low=-4.0, high=4.0, ranges={1: (0.0, 1.0)}),
            Sample(((3, 6), (6,)), {"keep_zero": True}, low=-4.0, high=4.0, ranges={1: (0.0, 1.0)}),
        ),
    ),
    OpDef(
        name="MaskedSoftmax",
        summary="softmax over the last axis of in[0] plus in[1], which holds one addend per image and channel",
        inputs=TWO_INPUTS,
        types=rows("T T > T : f16 f32 u16 u8"),
        infer=_masked_infer,
        reference=_masked_reference,
        result_range=lambda node: (0.0, 1.0),
        lower=_masked_lower,
        work=vector_work(12),
        kind="softmax",
        params=(Param("mode", default=0, choices={"UNCOMPRESSED": 0, "COMPRESSED": 1}),),
        constraints=(Constraint("mode is UNCOMPRESSED", lambda node: node.params["mode"] == 0),),
        samples=(Sample(((2, 2, 3, 8), (2, 8)), ranges={1: (-4.0, 0.0)}),),
    ),
)
