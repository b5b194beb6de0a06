"""Functions of two tensors, broadcast from the last axis: arithmetic, comparisons and logic.

ElementWiseBinary names its function by a parameter. ElementWiseSelect picks between two tensors by a third.
Outside booleans, true is 1 and anything but 0 is true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._elementwise import Family, elementwise, one_node, truth_of
from openhtp.ops._node import Array, Emitter, Node
from openhtp.ops._opdef import TWO_INPUTS, Lower, OnnxRule, OpDef, Port, Sample, TypeRow, rows, vector_work
from openhtp.ops._shapes import broadcast_inputs

Compute = Callable[[Array, Array], Array]

_FIXED_AND_FLOAT = rows("T T > T : f16 f32 u16 s16 u8 s8")
_WITH_INT = rows("T T > T : f16 f32 u16 s16 u8 s8 i32")
_COMPARED = rows(
    "T T > b : f16 f32",
    "T T > u8|s8|b : u16 s16 u8 s8",
    "i32 i32 > u8|s8|b|i32",
    "T T > b : n32 i64 b",
)
_LOGICAL = rows("T T > T : u8 s8 b")
_SAMPLES = (
    Sample(((1, 5, 7, 3), (1, 5, 7, 3)), ranges={1: (0.5, 3.0)}),
    Sample(((2, 4, 3), (3,)), ranges={1: (0.5, 3.0)}, static=(1,)),
    Sample(((2, 1, 3), (4, 1)), ranges={1: (-3.0, -0.5)}),
)


def _binary(
    name: str, summary: str, types: tuple[TypeRow, ...], compute: Compute, lower: Lower, **facts: Any
) -> OpDef:
    return elementwise(
        name,
        summary,
        types,
        lambda node, arrays: (compute(arrays[0], arrays[1]),),
        lower,
        infer=broadcast_inputs,
        inputs=TWO_INPUTS,
        **facts,
    )


def _arithmetic(
    name: str,
    onnx_op: str,
    compute: Compute,
    summary: str,
    kind: str,
    *,
    types: tuple[TypeRow, ...] = _WITH_INT,
    cost: int = 1,
) -> OpDef:
    def lower(node: Node, e: Emitter) -> None:
        operands = [e.value(0), e.value(1)]
        if onnx_op == "Div" and node.input().dtype is DType.INT_32:
            # Integer division traps on 0 and on the smallest number by -1, and would end the whole process.
            exact = e.node("Div", [e.node("Cast", [operand], to="float64") for operand in operands])
            return e.put(0, e.node("Cast", [exact], to="int32"))
        if node.input().dtype is DType.UINT_32:
            # The runtime has no kernel for it; the low 32 bits of the wide result are the same.
            wide = e.node(onnx_op, [e.node("Cast", [operand], to="int64") for operand in operands])
            return e.put(0, e.node("Cast", [wide], to="uint32"))
        return e.put(0, e.node(onnx_op, operands))

    return _binary(
        name,
        summary,
        types,
        compute,
        lower,
        work=vector_work(cost),
        kind=kind,
        takes_activation=True,
        affine_by_constant=True,
        onnx=(OnnxRule(onnx_op),),
        samples=_SAMPLES,
    )


def _divide(a: Array, b: Array) -> Array:
    # Integers divide towards zero, as the vector units do.
    return np.trunc(a / b).astype(a.dtype) if a.dtype.kind in "iu" else np.asarray(a / b)


_ARITHMETIC = (
    _arithmetic("ElementWiseAdd", "Add", np.add, "out = in[0] + in[1]", "add"),
    _arithmetic("ElementWiseSubtract", "Sub", np.subtract, "out = in[0] - in[1]", "subtract"),
    _arithmetic(
        "ElementWiseMultiply",
        "Mul",
        np.multiply,
        "out = in[0] * in[1]",
        "multiply",
        types=rows("T T > T : f16 f32 u16 s16 u8 s8 i32 n32"),
    ),
    _arithmetic(
        "ElementWiseDivide",
        "Div",
        _divide,
        "out = in[0] / in[1]; integers round towards zero",
        "divide",
        types=rows("T T > T : f16 f32 u16 u8 s8 i32"),
        cost=8,
    ),
)


def _function(
    name: str,
    summary: str,
    compute: Compute,
    emit: Callable[[Emitter, str, str], str],
    *,
    types: tuple[TypeRow, ...] = _WITH_INT,
    cost: int = 2,
    kind: str = "multiply",
    low: float = -2.0,
    onnx: tuple[OnnxRule, ...] = (),
) -> OpDef:
    ranges = {0: (low, 3.0), 1: (0.6, 2.9)}
    return _binary(
        name,
        summary,
        types,
        compute,
        lambda node, e: e.put(0, emit(e, e.value(0), e.value(1))),
        work=vector_work(cost),
        kind=kind,
        takes_activation=True,
        onnx=onnx,
        samples=(
            Sample(((1, 5, 7, 3), (1, 5, 7, 3)), ranges=ranges),
            Sample(((2, 4, 3), (3,)), ranges=ranges, static=(1,)),
        ),
    )


def _floor_divide(e: Emitter, a: str, b: str) -> str:
    return e.node("Floor", [e.node("Div", [a, b])])


def _modulo(e: Emitter, a: str, b: str) -> str:
    # The result takes the sign of the divisor.
    return e.node("Sub", [a, e.node("Mul", [b, _floor_divide(e, a, b)])])


def _squared_difference(e: Emitter, a: str, b: str) -> str:
    difference = e.node("Sub", [a, b])
    return e.node("Mul", [difference, difference])


def _power(a: Array, b: Array) -> Array:
    # Whole powers are defined for negative numbers, too.
    return np.asarray(np.power(a, b) if b.dtype.kind in "iu" else np.exp(b * np.log(a)))


_FUNCTIONS = (
    _function(
        "ElementWiseMaximum",
        "the larger",
        np.maximum,
        one_node("Max"),
        cost=1,
        kind="add",
        onnx=(OnnxRule("Max"),),
    ),
    _function(
        "ElementWiseMinimum",
        "the smaller",
        np.minimum,
        one_node("Min"),
        cost=1,
        kind="add",
        onnx=(OnnxRule("Min"),),
    ),
    _function(
        "ElementWisePower",
        "in[0] to the power of in[1]",
        _power,
        one_node("Pow"),
        types=rows("T T > T : f16 f32", "u16 u8|s8|u16|s16|i32|f32 > u16", "u8|s8 u8|s8|u16|s16|i32|f32 > u8|s8"),
        cost=16,
        kind="unary",
        low=0.5,
        onnx=(OnnxRule("Pow"),),
    ),
    _function(
        "ElementWiseFloorDiv",
        "the quotient, rounded down",
        lambda a, b: np.floor(a / b),
        _floor_divide,
        types=_FIXED_AND_FLOAT,
        cost=9,
    ),
    _function("ElementWiseFmod", "remainder with the sign of in[0]", np.fmod, one_node("Mod", fmod=1), cost=12),
    _function(
        "ElementWiseMod",
        "remainder with the sign of in[1]",
        lambda a, b: np.asarray(a - b * np.floor(a / b)),
        _modulo,
        types=_FIXED_AND_FLOAT,
        cost=12,
    ),
    _function(
        "ElementWiseSquaredDifference",
        "the difference, squared",
        lambda a, b: np.asarray((a - b) ** 2),
        _squared_difference,
    ),
)


def _put_truth(node: Node, e: Emitter, truth: str) -> None:
    """Put a boolean result in whatever type the output has."""
    dtype = node.outputs[0].dtype
    if dtype is DType.BOOL_8:
        e.put_stored(0, truth)
    elif dtype.is_fixed_point or dtype.is_float:
        e.put(0, e.node("Cast", [truth], to="float32"))
    else:
        e.put_stored(0, e.node("Cast", [truth], to=dtype.numpy.name))


def _comparable(node: Node, e: Emitter, index: int) -> str:
    """The runtime orders no booleans and no unsigned 32-bit integers: compare those as 64-bit numbers."""
    is_unordered = node.input(index).dtype in (DType.UINT_32, DType.BOOL_8)
    return e.node("Cast", [e.value(index)], to="int64") if is_unordered else e.value(index)


def _comparison(name: str, summary: str, onnx_op: str, compute: Compute, *, inverted: bool = False) -> OpDef:
    def lower(node: Node, e: Emitter) -> None:
        truth = e.node(onnx_op, [_comparable(node, e, 0), _comparable(node, e, 1)])
        _put_truth(node, e, e.node("Not", [truth]) if inverted else truth)

    return _to_truth(name, summary, _COMPARED, compute, lower, () if inverted else (OnnxRule(onnx_op),))


def _logic(name: str, summary: str, onnx_op: str, compute: Compute) -> OpDef:
    def lower(node: Node, e: Emitter) -> None:
        _put_truth(node, e, e.node(onnx_op, [truth_of(node, e, 0), truth_of(node, e, 1)]))

    return _to_truth(name, summary, _LOGICAL, lambda a, b: compute(a != 0, b != 0), lower, (OnnxRule(onnx_op),))


def _to_truth(
    name: str, summary: str, types: tuple[TypeRow, ...], compute: Compute, lower: Lower, onnx: tuple[OnnxRule, ...]
) -> OpDef:
    samples = (Sample(((1, 5, 7, 3), (1, 5, 7, 3))), Sample(((2, 4, 3), (3,)), static=(1,)))
    return _binary(name, summary, types, compute, lower, kind="add", onnx=onnx, samples=samples)


_TRUTHS = (
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

_MEMBERS = (*_ARITHMETIC, *_FUNCTIONS, *_TRUTHS)
_BY_NAME = {opdef.name: opdef for opdef in _MEMBERS}
_OPERATIONS = (
    "ADD AND DIVIDE EQUAL FLOOR_DIV FMOD GREATER GREATER_EQUAL LESS LESS_EQUAL MAXIMUM MINIMUM MOD MULTIPLY"
    " NOT_EQUAL OR POWER SQUARED_DIFFERENCE SUBTRACT XOR"
)
_FAMILY = Family({word: _BY_NAME["ElementWise" + word.title().replace("_", "")] for word in _OPERATIONS.split()})

OPS = (
    *_MEMBERS,
    elementwise(
        "ElementWiseBinary",
        "the function named by operation, of in[0] and in[1]",
        rows(
            "f16 f16 > f16|b",
            "f32 f32 > f32|b",
            "u16 u16|u8|s8|s16|f32 > u16|u8|s8|b",
            "s16 s16 > s16|u8|s8|b",
            "u8 u8|s8|u16|s16|f32 > u8|s8|b",
            "s8 s8|u8|u16|s16|f32 > s8|u8|b",
            "i32 i32 > i32|u8|s8|b",
            "b b > b",
        ),
        _FAMILY.reference,
        _FAMILY.lower,
        infer=broadcast_inputs,
        inputs=TWO_INPUTS,
        work=_FAMILY.work,
        kind="add",
        params=(_FAMILY.param,),
        constraints=(_FAMILY.types_fit,),
        takes_activation=True,
        samples=(
            Sample(((1, 4, 5, 3), (1, 4, 5, 3)), {"operation": "MULTIPLY"}),
            Sample(((1, 4, 5, 3), (3,)), {"operation": "GREATER"}, static=(1,)),
            Sample(((1, 4, 5, 3), (1, 4, 5, 3)), {"operation": "OR"}),
        ),
    ),
    elementwise(
        "ElementWiseSelect",
        "in[1] where in[0] is true, otherwise in[2]",
        rows("b T T > T : f16 f32 i64", "u8|s8|b|i32 T T > T : u16 s16 u8 s8 i32"),
        lambda node, arrays: (np.where(arrays[0] != 0, arrays[1], arrays[2]),),
        lambda node, e: e.put(0, e.node("Where", [truth_of(node, e, 0), e.value(1), e.value(2)])),
        infer=broadcast_inputs,
        inputs=(*TWO_INPUTS, Port("in[2]")),
        moves_only=True,
        kind="add",
        onnx=(OnnxRule("Where"),),
        samples=(
            Sample(((1, 4, 5, 3), (1, 4, 5, 3), (1, 4, 5, 3)), ranges={0: (0.0, 1.0)}),
            Sample(((4, 1), (3,), (2, 4, 3)), ranges={0: (0.0, 1.0)}),
        ),
    ),
)
