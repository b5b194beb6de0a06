"""Functions of one number: absolute value, rounding, trigonometry, powers and logarithms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._family import Family
from openhtp.ops._node import Array, Node
from openhtp.ops._onnx import OnnxRule
from openhtp.ops._opdef import OpDef, Param, Port, Sample, vector_work
from openhtp.ops._shapes import same_as_input
from openhtp.ops._tiles import split_anywhere
from openhtp.ops._types import rows
from openhtp.ops._unary import plain, unary

_TYPES = rows("T > T : f16 f32 u16 u8 s8")
_WITH_INT = rows("T > T : f16 f32 u16 s16 u8 s8 i32")


def _rsqrt(e: Emitter, x: str) -> str:
    return e.node("Reciprocal", [e.node("Sqrt", [x])])


def _not_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    return (arrays[0] == 0,)


def _not_lower(node: Node, e: Emitter) -> None:
    if node.input().dtype is DType.BOOL_8:
        e.put_stored(0, e.node("Not", [e.value(0)]))
    else:
        zero = e.node("Equal", [e.value(0), e.const(np.array(0, np.float32))])
        e.put(0, e.node("Cast", [zero], to="float32"))


_NOT = OpDef(
    name="ElementWiseNot",
    summary="true where in[0] is zero or false",
    inputs=(Port("in[0]"),),
    outputs=(Port("out[0]"),),
    types=rows("T > T : u8 s8 b"),
    infer=same_as_input,
    reference=_not_reference,
    lower=_not_lower,
    kind="add",
    layout=Layout.ANY,
    tile=split_anywhere,
    onnx=(OnnxRule("Not"),),
    samples=(Sample(((1, 6, 5, 4),), low=-3.0, high=3.0),),
)


def softplus_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """log(1 + exp(beta x)) / beta."""
    beta = node.params["beta"]
    return (np.logaddexp(0.0, beta * arrays[0]) / beta,)


def softplus_lower(node: Node, e: Emitter) -> None:
    """log(1 + exp(beta x)) / beta."""
    beta = e.const(np.array(node.params["beta"], np.float32))
    e.put(0, e.node("Div", [e.node("Softplus", [e.node("Mul", [e.value(0), beta])]), beta]))


_SOFTPLUS = OpDef(
    name="ElementWiseSoftplus",
    summary="out = log(1 + exp(beta * in[0])) / beta",
    inputs=(Port("in[0]"),),
    outputs=(Port("out[0]"),),
    types=_TYPES,
    infer=same_as_input,
    reference=softplus_reference,
    lower=softplus_lower,
    work=vector_work(10),
    kind="unary",
    params=(Param("beta", DType.FLOAT_32, default=1.0), Param("threshold", DType.FLOAT_32, default=-1.0)),
    layout=Layout.ANY,
    tile=split_anywhere,
    samples=(Sample(((1, 6, 5, 4),), {"beta": 1.5}),),
)


def _plain(name: str, onnx_op: str, summary: str, compute: object, **more: object) -> OpDef:
    rule = (OnnxRule(onnx_op),)
    types = more.pop("types", _TYPES)
    return unary(name, summary, compute, plain(onnx_op), types, onnx=rule, **more)  # type: ignore[arg-type]


_MEMBERS = {
    "ABS": _plain("ElementWiseAbs", "Abs", "out = |in[0]|", np.abs, types=_WITH_INT, kind="affine"),
    "ASIN": _plain("ElementWiseAsin", "Asin", "out = asin(in[0])", np.arcsin, cost=12, low=-0.95, high=0.95),
    "ATAN": _plain("ElementWiseAtan", "Atan", "out = atan(in[0])", np.arctan, cost=12),
    "CEIL": _plain("ElementWiseCeil", "Ceil", "the next whole number up", np.ceil),
    "COS": _plain("ElementWiseCos", "Cos", "out = cos(in[0])", np.cos, cost=10),
    "EXP": _plain("ElementWiseExp", "Exp", "out = exp(in[0])", np.exp, cost=8),
    "FLOOR": _plain("ElementWiseFloor", "Floor", "the next whole number down", np.floor),
    "LOG": _plain("ElementWiseLog", "Log", "out = log(in[0])", np.log, cost=8, low=0.25, high=5.0),
    "NEG": _plain("ElementWiseNeg", "Neg", "out = -in[0]", np.negative, types=_WITH_INT, kind="affine"),
    "NOT": _NOT,
    "RECIPROCAL": _plain("ElementWiseReciprocal", "Reciprocal", "1 / in[0]", np.reciprocal, low=0.5, high=4.0),
    "ROUND": _plain("ElementWiseRound", "Round", "the nearest whole number, ties to even", np.rint),
    "RSQRT": unary(
        "ElementWiseRsqrt",
        "out = 1 / sqrt(in[0])",
        lambda x: np.asarray(x**-0.5),
        _rsqrt,
        _TYPES,
        cost=8,
        low=0.5,
        high=5.0,
    ),
    "SIGN": _plain("ElementWiseSign", "Sign", "-1, 0 or 1", np.sign),
    "SIN": _plain("ElementWiseSin", "Sin", "out = sin(in[0])", np.sin, cost=10),
    "SQRT": _plain("ElementWiseSquareRoot", "Sqrt", "out = sqrt(in[0])", np.sqrt, cost=6, low=0.0, high=5.0),
}
_NUMBERS = {word: number for number, word in enumerate(_MEMBERS)}
_FAMILY = Family(_NUMBERS, _MEMBERS)

_UNARY = OpDef(
    name="ElementWiseUnary",
    summary="the function named by operation, of each element",
    inputs=(Port("in[0]"),),
    outputs=(Port("out[0]"),),
    types=rows("T > T : f16 f32 u16 s16 u8 s8 b i32"),
    infer=same_as_input,
    reference=_FAMILY.reference,
    lower=_FAMILY.lower,
    work=_FAMILY.work,
    kind="unary",
    params=(_FAMILY.param,),
    constraints=(_FAMILY.types_fit,),
    layout=Layout.ANY,
    tile=split_anywhere,
    samples=(
        Sample(((1, 3, 5, 4),), {"operation": "EXP"}, types=("f16", "f32", "u16", "u8", "s8")),
        Sample(((1, 3, 5, 4),), {"operation": "NOT"}, types=("b",)),
        Sample(((1, 3, 5, 4),), {"operation": "NEG"}, types=("s16", "i32")),
    ),
)

# RECIPROCAL exists as an operation of the family only.
OPS = (*(opdef for word, opdef in _MEMBERS.items() if word != "RECIPROCAL"), _SOFTPLUS, _UNARY)
