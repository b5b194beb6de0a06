"""Smooth activations: Sigmoid, Tanh, Gelu, HardSwish, Elu."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node
from openhtp.ops._onnx import OnnxRule
from openhtp.ops._opdef import OpDef, Param, Port, Sample, vector_work
from openhtp.ops._shapes import same_as_input
from openhtp.ops._tiles import split_anywhere
from openhtp.ops._types import rows
from openhtp.ops._unary import plain, unary

_ERF = np.vectorize(math.erf, otypes=[np.float64])
_FLOAT_AND_FIXED = rows("T > T : f16 f32 u16 s16 u8 s8")


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), written so that no exponential overflows."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def gelu(x: Array) -> Array:
    """x times the normal distribution function."""
    return np.asarray(0.5 * x * (1.0 + _ERF(x / math.sqrt(2.0))))


def hard_swish(x: Array) -> Array:
    """x * min(max(x + 3, 0), 6) / 6."""
    return np.asarray(x * np.clip(x + 3.0, 0.0, 6.0) / 6.0)


def elu_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Elu with the node's alpha."""
    x = arrays[0]
    return (np.where(x > 0, x, node.params["alpha"] * np.expm1(np.minimum(x, 0.0))),)


def elu_lower(node: Node, e: Emitter) -> None:
    """Elu with the node's alpha."""
    e.put(0, e.node("Elu", [e.value(0)], alpha=node.params["alpha"]))


OPS = (
    unary(
        "Sigmoid",
        "out = 1 / (1 + exp(-in[0]))",
        sigmoid,
        plain("Sigmoid"),
        _FLOAT_AND_FIXED,
        cost=8,
        result_range=(0.0, 1.0),
        onnx=(OnnxRule("Sigmoid"),),
    ),
    unary(
        "Tanh",
        "out = tanh(in[0])",
        np.tanh,
        plain("Tanh"),
        _FLOAT_AND_FIXED,
        cost=8,
        result_range=(-1.0, 1.0),
        onnx=(OnnxRule("Tanh"),),
    ),
    unary(
        "Gelu",
        "out = in[0] * (1 + erf(in[0] / sqrt(2))) / 2",
        gelu,
        plain("Gelu"),
        rows("T > T : f16 f32 u16 u8 s8"),
        cost=12,
    ),
    unary(
        "HardSwish",
        "out = in[0] * min(max(in[0] + 3, 0), 6) / 6",
        hard_swish,
        plain("HardSwish"),
        rows("T > T : f16 f32 u16 u8 s8"),
        cost=4,
        onnx=(OnnxRule("HardSwish"),),
    ),
    OpDef(
        name="Elu",
        summary="out = in[0] above 0, alpha * (exp(in[0]) - 1) below",
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"),),
        types=rows("T > T : f16 f32 u16 s16 u8 s8"),
        infer=same_as_input,
        reference=elu_reference,
        lower=elu_lower,
        work=vector_work(8),
        kind="unary",
        params=(Param("alpha", DType.FLOAT_32, default=1.0),),
        layout=Layout.ANY,
        tile=split_anywhere,
        onnx=(OnnxRule("Elu", attrs={"alpha": "alpha"}),),
        samples=(Sample(((1, 6, 5, 4),), {"alpha": 0.7}),),
    ),
)
