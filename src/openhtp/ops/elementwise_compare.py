"""Comparisons and logic of two tensors. Outside booleans, true is 1 and anything but 0 is true."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node
from openhtp.ops._onnx import OnnxRule
from openhtp.ops._opdef import OpDef, Port, Sample
from openhtp.ops._shapes import broadcast_inputs
from openhtp.ops._tiles import split_anywhere
from openhtp.ops._types import TypeRow, rows

_COMPARED = rows(
    "T T > b : f16 f32",
    "T T > u8|s8|b : u16 s16 u8 s8",
    "i32 i32 > u8|s8|b|i32",
    "T T > b : n32 i64 b",
)
_LOGICAL = rows("T T > T : u8 s8 b")


def put_truth(node: Node, e: Emitter, truth: str) -> None:
    """Put a boolean result in whatever type the output has."""
    dtype = node.outputs[0].dtype
    if dtype is DType.BOOL_8:
        e.put_stored(0, truth)
    elif dtype.is_fixed_point or dtype.is_float:
        e.put(0, e.node("Cast", [truth], to="float32"))
    else:
        e.put_stored(0, e.node("Cast", [truth], to=dtype.numpy.name))


def truth_of(node: Node, e: Emitter, index: int) -> str:
    """An input as booleans."""
    if node.input(index).dtype is DType.BOOL_8:
        return e.value(index)
    return e.node("Cast", [e.value(index)], to="bool")


def _comparable(node: Node, e: Emitter, index: int) -> str:
    """The runtime orders no booleans and no unsigned 32-bit integers: compare those as 64-bit numbers."""
    dtype = node.input(index).dtype
    return (
        e.node("Cast", [e.value(index)], to="int64") if dtype in (DType.UINT_32, DType.BOOL_8) else e.value(index)
    )


def _comparison(
    name: str, summary: str, onnx_op: str, compute: Callable[[Array, Array], Array], *, inverted: bool = False
) -> OpDef:
    def reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
        return (compute(arrays[0], arrays[1]),)

    def lower(node: Node, e: Emitter) -> None:
        truth = e.node(onnx_op, [_comparable(node, e, 0), _comparable(node, e, 1)])
        put_truth(node, e, e.node("Not", [truth]) if inverted else truth)

    return _two_to_truth(name, summary, _COMPARED, reference, lower, () if inverted else (OnnxRule(onnx_op),))


def _logic(name: str, summary: str, onnx_op: str, compute: Callable[[Array, Array], Array]) -> OpDef:
    def reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
        return (compute(arrays[0] != 0, arrays[1] != 0),)

    def lower(node: Node, e: Emitter) -> None:
        put_truth(node, e, e.node(onnx_op, [truth_of(node, e, 0), truth_of(node, e, 1)]))

    return _two_to_truth(name, summary, _LOGICAL, reference, lower, (OnnxRule(onnx_op),))


def _two_to_truth(
    name: str,
    summary: str,
    types: tuple[TypeRow, ...],
    reference: Callable[[Node, Sequence[Array]], tuple[Array, ...]],
    lower: Callable[[Node, Emitter], None],
    onnx: tuple[OnnxRule, ...],
) -> OpDef:
    return OpDef(
        name=name,
        summary=summary,
        inputs=(Port("in[0]"), Port("in[1]")),
        outputs=(Port("out[0]"),),
        types=types,
        infer=broadcast_inputs,
        reference=reference,
        lower=lower,
        kind="add",
        layout=Layout.ANY,
        tile=split_anywhere,
        onnx=onnx,
        samples=(Sample(((1, 5, 7, 3), (1, 5, 7, 3))), Sample(((2, 4, 3), (3,)), static=(1,))),
    )


OPS = (
    _comparison("ElementWiseEqual", "in[0] = in[1]", "Equal", np.equal),
    _comparison("ElementWiseNotEqual", "in[0] and in[1] differ", "Equal", np.not_equal, inverted=True),
    _comparison("ElementWiseGreater", "in[0] > in[1]", "Greater", np.greater),
    _comparison("ElementWiseGreaterEqual", "in[0] >= in[1]", "GreaterOrEqual", np.greater_equal),
    _comparison("ElementWiseLess", "in[0] < in[1]", "Less", np.less),
    _comparison("ElementWiseLessEqual", "in[0] <= in[1]", "LessOrEqual", np.less_equal),
    _logic("ElementWiseAnd", "both are true", "And", np.logical_and),
    _logic("ElementWiseOr", "one or both are true", "Or", np.logical_or),
    _logic("ElementWiseXor", "exactly one is true", "Xor", np.logical_xor),
)
