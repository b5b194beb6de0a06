"""Functions of one number: absolute value, rounding, trigonometry, powers, logarithms; IsNan and IsInf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._elementwise import Family, elementwise, one_node, unary
from openhtp.ops._node import Array, Arrays, Emitter, Node, Results
from openhtp.ops._opdef import OnnxRule, OpDef, Param, Sample, TypeRow, rows, vector_work

_TYPES = rows("T > T : f16 f32 u16 u8 s8")
_WITH_INT = rows("T > T : f16 f32 u16 s16 u8 s8 i32")


def _not_lower(node: Node, e: Emitter) -> None:
    if node.input().dtype is DType.BOOL_8:
        e.put_stored(0, e.node("Not", [e.value(0)]))
    else:
        zero = e.node("Equal", [e.value(0), e.floats(0)])
        e.put(0, e.node("Cast", [zero], to="float32"))


_NOT = elementwise(
    "ElementWiseNot",
    "true where in[0] is zero or false",
    rows("T > T : u8 s8 b"),
    lambda node, arrays: (arrays[0] == 0,),
    _not_lower,
    kind="add",
    onnx=(OnnxRule("Not"),),
    samples=(Sample(((1, 6, 5, 4),), low=-3.0, high=3.0),),
)


def softplus_reference(node: Node, arrays: Arrays) -> Results:
    """log(1 + exp(beta x)) / beta."""
    beta = node.params["beta"]
    return (np.logaddexp(0.0, beta * arrays[0]) / beta,)


def softplus_lower(node: Node, e: Emitter) -> None:
    """log(1 + exp(beta x)) / beta."""
    beta = e.floats(node.params["beta"])
    e.put(0, e.node("Div", [e.node("Softplus", [e.node("Mul", [e.value(0), beta])]), beta]))


_SOFTPLUS = elementwise(
    "ElementWiseSoftplus",
    "out = log(1 + exp(beta * in[0])) / beta",
    _TYPES,
    softplus_reference,
    softplus_lower,
    work=vector_work(10),
    kind="unary",
    params=(Param("beta", DType.FLOAT_32, default=1.0), Param("threshold", DType.FLOAT_32, default=-1.0)),
    samples=(Sample(((1, 6, 5, 4),), {"beta": 1.5}),),
)


def _onnx_unary(
    name: str,
    onnx_op: str,
    summary: str,
    compute: Callable[[Array], Array],
    *,
    types: tuple[TypeRow, ...] = _TYPES,
    **facts: Any,
) -> OpDef:
    return unary(name, summary, compute, one_node(onnx_op), types, onnx=(OnnxRule(onnx_op),), **facts)


_MEMBERS = {
    "ABS": _onnx_unary("ElementWiseAbs", "Abs", "out = |in[0]|", np.abs, types=_WITH_INT, kind="affine"),
    "ASIN": _onnx_unary("ElementWiseAsin", "Asin", "out = asin(in[0])", np.arcsin, cost=12, low=-0.95, high=0.95),
    "ATAN": _onnx_unary("ElementWiseAtan", "Atan", "out = atan(in[0])", np.arctan, cost=12),
    "CEIL": _onnx_unary("ElementWiseCeil", "Ceil", "the next whole number up", np.ceil),
    "COS": _onnx_unary("ElementWiseCos", "Cos", "out = cos(in[0])", np.cos, cost=10),
    "EXP": _onnx_unary("ElementWiseExp", "Exp", "out = exp(in[0])", np.exp, cost=8),
    "FLOOR": _onnx_unary("ElementWiseFloor", "Floor", "the next whole number down", np.floor),
    "LOG": _onnx_unary("ElementWiseLog", "Log", "out = log(in[0])", np.log, cost=8, low=0.25, high=5.0),
    "NEG": _onnx_unary("ElementWiseNeg", "Neg", "out = -in[0]", np.negative, types=_WITH_INT, kind="affine"),
    "NOT": _NOT,
    "RECIPROCAL": _onnx_unary(
        "ElementWiseReciprocal", "Reciprocal", "1 / in[0]", np.reciprocal, low=0.5, high=4.0
    ),
    "ROUND": _onnx_unary("ElementWiseRound", "Round", "the nearest whole number, ties to even", np.rint),
    "RSQRT": unary(
        "ElementWiseRsqrt",
        "out = 1 / sqrt(in[0])",
        lambda x: np.asarray(x**-0.5),
        lambda e, x: e.node("Reciprocal", [e.node("Sqrt", [x])]),
        _TYPES,
        cost=8,
        low=0.5,
        high=5.0,
    ),
    "SIGN": _onnx_unary("ElementWiseSign", "Sign", "-1, 0 or 1", np.sign),
    "SIN": _onnx_unary("ElementWiseSin", "Sin", "out = sin(in[0])", np.sin, cost=10),
    "SQRT": _onnx_unary("ElementWiseSquareRoot", "Sqrt", "out = sqrt(in[0])", np.sqrt, cost=6, low=0.0, high=5.0),
}
_FAMILY = Family(_MEMBERS)

_UNARY = elementwise(
    "ElementWiseUnary",
    "the function named by operation, of each element",
    rows("T > T : f16 f32 u16 s16 u8 s8 b i32"),
    _FAMILY.reference,
    _FAMILY.lower,
    work=_FAMILY.work,
    kind="unary",
    params=(_FAMILY.param,),
    constraints=(_FAMILY.types_fit,),
    samples=(
        Sample(((1, 3, 5, 4),), {"operation": "EXP"}, types=("f16", "f32", "u16", "u8", "s8")),
        Sample(((1, 3, 5, 4),), {"operation": "NOT"}, types=("b",)),
        Sample(((1, 3, 5, 4),), {"operation": "NEG"}, types=("s16", "i32")),
    ),
)

_SPECIAL_TYPES = rows("f16|f32 > b")
_SAMPLES = (Sample(((1, 6, 5, 4),)),)


def _inf_reference(node: Node, arrays: Arrays) -> Results:
    above = (arrays[0] == np.inf) & bool(node.params["detect_positive"])
    below = (arrays[0] == -np.inf) & bool(node.params["detect_negative"])
    return (above | below,)


def _inf_lower(node: Node, e: Emitter) -> None:
    above, below = (int(node.params[f"detect_{sign}"]) for sign in ("positive", "negative"))
    e.put_stored(0, e.node("IsInf", [e.value(0)], detect_positive=above, detect_negative=below))


OPS = (
    # RECIPROCAL exists as an operation of the family only.
    *(opdef for word, opdef in _MEMBERS.items() if word != "RECIPROCAL"),
    _SOFTPLUS,
    _UNARY,
    elementwise(
        "IsNan",
        "true where in[0] is not a number",
        _SPECIAL_TYPES,
        lambda node, arrays: (np.isnan(arrays[0]),),
        lambda node, e: e.put_stored(0, e.node("IsNaN", [e.value(0)])),
        onnx=(OnnxRule("IsNaN"),),
        samples=_SAMPLES,
    ),
    elementwise(
        "IsInf",
        "true where in[0] is infinite, of the signs that are asked for",
        _SPECIAL_TYPES,
        _inf_reference,
        _inf_lower,
        params=(
            Param("detect_negative", DType.BOOL_8, default=True),
            Param("detect_positive", DType.BOOL_8, default=True),
        ),
        onnx=(
            OnnxRule("IsInf", attrs={"detect_negative": "detect_negative", "detect_positive": "detect_positive"}),
        ),
        samples=_SAMPLES,
    ),
)
