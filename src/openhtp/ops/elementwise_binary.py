"""More functions of two tensors, and ElementWiseBinary, which names its function by a parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from openhtp.ops import elementwise_arithmetic, elementwise_compare
from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._family import Family
from openhtp.ops._node import Array, Node
from openhtp.ops._onnx import OnnxRule
from openhtp.ops._opdef import OpDef, Port, Sample, vector_work
from openhtp.ops._shapes import broadcast_inputs
from openhtp.ops._tiles import split_anywhere
from openhtp.ops._types import TypeRow, rows

_FIXED_AND_FLOAT = rows("T T > T : f16 f32 u16 s16 u8 s8 i32")


def _binary(
    name: str,
    summary: str,
    compute: Callable[[Array, Array], Array],
    emit: Callable[[Emitter, str, str], str],
    *,
    types: tuple[TypeRow, ...] = _FIXED_AND_FLOAT,
    cost: int = 2,
    kind: str = "multiply",
    low: float = -2.0,
    onnx: tuple[OnnxRule, ...] = (),
) -> OpDef:
    def reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
        return (compute(arrays[0], arrays[1]),)

    def lower(node: Node, e: Emitter) -> None:
        e.put(0, emit(e, e.value(0), e.value(1)))

    ranges = {0: (low, 3.0), 1: (0.6, 2.9)}
    return OpDef(
        name=name,
        summary=summary,
        inputs=(Port("in[0]"), Port("in[1]")),
        outputs=(Port("out[0]"),),
        types=types,
        infer=broadcast_inputs,
        reference=reference,
        lower=lower,
        work=vector_work(cost),
        kind=kind,
        layout=Layout.ANY,
        takes_activation=True,
        tile=split_anywhere,
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


_NO_INT = rows("T T > T : f16 f32 u16 s16 u8 s8")

_OWN = (
    _binary(
        "ElementWiseMaximum",
        "the larger",
        np.maximum,
        lambda e, a, b: e.node("Max", [a, b]),
        cost=1,
        kind="add",
        onnx=(OnnxRule("Max"),),
    ),
    _binary(
        "ElementWiseMinimum",
        "the smaller",
        np.minimum,
        lambda e, a, b: e.node("Min", [a, b]),
        cost=1,
        kind="add",
        onnx=(OnnxRule("Min"),),
    ),
    _binary(
        "ElementWisePower",
        "in[0] to the power of in[1]",
        _power,
        lambda e, a, b: e.node("Pow", [a, b]),
        types=rows("T T > T : f16 f32", "u16 u8|s8|u16|s16|i32|f32 > u16", "u8|s8 u8|s8|u16|s16|i32|f32 > u8|s8"),
        cost=16,
        kind="unary",
        low=0.5,
        onnx=(OnnxRule("Pow"),),
    ),
    _binary(
        "ElementWiseFloorDiv",
        "the quotient, rounded down",
        lambda a, b: np.floor(a / b),
        _floor_divide,
        types=_NO_INT,
        cost=9,
    ),
    _binary(
        "ElementWiseFmod",
        "remainder with the sign of in[0]",
        np.fmod,
        lambda e, a, b: e.node("Mod", [a, b], fmod=1),
        cost=12,
    ),
    _binary(
        "ElementWiseMod",
        "remainder with the sign of in[1]",
        lambda a, b: np.asarray(a - b * np.floor(a / b)),
        _modulo,
        types=_NO_INT,
        cost=12,
    ),
    _binary(
        "ElementWiseSquaredDifference",
        "the difference, squared",
        lambda a, b: np.asarray((a - b) ** 2),
        _squared_difference,
    ),
)
_BY_NAME = {opdef.name: opdef for opdef in (*_OWN, *elementwise_arithmetic.OPS, *elementwise_compare.OPS)}
_WORDS = (
    "ADD AND DIVIDE EQUAL FLOOR_DIV FMOD GREATER GREATER_EQUAL LESS LESS_EQUAL MAXIMUM MINIMUM MOD MULTIPLY"
    " NOT_EQUAL OR POWER SQUARED_DIFFERENCE SUBTRACT XOR"
)
_NUMBERS = {word: number for number, word in enumerate(_WORDS.split())}
_FAMILY = Family(_NUMBERS, {word: _BY_NAME["ElementWise" + word.title().replace("_", "")] for word in _NUMBERS})

OPS = (
    *_OWN,
    OpDef(
        name="ElementWiseBinary",
        summary="the function named by operation, of in[0] and in[1]",
        inputs=(Port("in[0]"), Port("in[1]")),
        outputs=(Port("out[0]"),),
        types=rows(
            "f16 f16 > f16|b",
            "f32 f32 > f32|b",
            "u16 u16|u8|s8|s16|f32 > u16|u8|s8|b",
            "s16 s16 > s16|u8|s8|b",
            "u8 u8|s8|u16|s16|f32 > u8|s8|b",
            "s8 s8|u8|u16|s16|f32 > s8|u8|b",
            "i32 i32 > i32|u8|s8|b",
            "b b > b",
        ),
        infer=broadcast_inputs,
        reference=_FAMILY.reference,
        lower=_FAMILY.lower,
        work=_FAMILY.work,
        kind="add",
        params=(_FAMILY.param,),
        constraints=(_FAMILY.types_fit,),
        layout=Layout.ANY,
        takes_activation=True,
        tile=split_anywhere,
        samples=(
            Sample(((1, 4, 5, 3), (1, 4, 5, 3)), {"operation": "MULTIPLY"}),
            Sample(((1, 4, 5, 3), (3,)), {"operation": "GREATER"}, static=(1,)),
            Sample(((1, 4, 5, 3), (1, 4, 5, 3)), {"operation": "OR"}),
        ),
    ),
)
