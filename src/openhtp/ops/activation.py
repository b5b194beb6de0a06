"""Activations other than clamps: Sigmoid, Tanh, Gelu, HardSwish, Elu, Prelu.

A LeakyRelu is a Prelu with a single slope. ElementWiseNeuron names its activation by a parameter, clamps included.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops import relu
from openhtp.ops._elementwise import elementwise, one_node, unary
from openhtp.ops._node import Array, Arrays, Emitter, Node, Results
from openhtp.ops._opdef import TWO_INPUTS, Constraint, Lower, OnnxRule, Param, Reference, Sample, rows, vector_work
from openhtp.ops.elementwise_unary import softplus_lower, softplus_reference

_ERF = np.vectorize(math.erf, otypes=[np.float64])
_FLOAT_AND_FIXED = rows("T > T : f16 f32 u16 s16 u8 s8")
_UNSIGNED_16 = rows("T > T : f16 f32 u16 u8 s8")


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), written so that no exponential overflows."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def _elu_reference(node: Node, arrays: Arrays) -> Results:
    x = arrays[0]
    return (np.where(x > 0, x, node.params["alpha"] * np.expm1(np.minimum(x, 0.0))),)


_SMOOTH = {
    "SIGMOID": unary(
        "Sigmoid",
        "out = 1 / (1 + exp(-in[0]))",
        sigmoid,
        one_node("Sigmoid"),
        _FLOAT_AND_FIXED,
        cost=8,
        result_range=lambda node: (0.0, 1.0),
        onnx=(OnnxRule("Sigmoid"),),
    ),
    "TANH": unary(
        "Tanh",
        "out = tanh(in[0])",
        np.tanh,
        one_node("Tanh"),
        _FLOAT_AND_FIXED,
        cost=8,
        result_range=lambda node: (-1.0, 1.0),
        onnx=(OnnxRule("Tanh"),),
    ),
    "GELU": unary(
        "Gelu",
        "out = in[0] * (1 + erf(in[0] / sqrt(2))) / 2",
        lambda x: np.asarray(0.5 * x * (1.0 + _ERF(x / math.sqrt(2.0)))),
        one_node("Gelu"),
        _UNSIGNED_16,
        cost=12,
    ),
    "HARD_SWISH": unary(
        "HardSwish",
        "out = in[0] * min(max(in[0] + 3, 0), 6) / 6",
        lambda x: np.asarray(x * np.clip(x + 3.0, 0.0, 6.0) / 6.0),
        one_node("HardSwish"),
        _UNSIGNED_16,
        cost=4,
        onnx=(OnnxRule("HardSwish"),),
    ),
    "ELU": elementwise(
        "Elu",
        "out = in[0] above 0, alpha * (exp(in[0]) - 1) below",
        _FLOAT_AND_FIXED,
        _elu_reference,
        lambda node, e: e.put(0, e.node("Elu", [e.value(0)], alpha=node.params["alpha"])),
        work=vector_work(8),
        kind="unary",
        params=(Param("alpha", DType.FLOAT_32, default=1.0),),
        onnx=(OnnxRule("Elu", attrs={"alpha": "alpha"}),),
        samples=(Sample(((1, 6, 5, 4),), {"alpha": 0.7}),),
    ),
}


def _slopes_fit(node: Node) -> bool:
    shape, slopes = node.shape(0), node.shape(1)
    pairs = zip(reversed(shape), reversed(slopes), strict=False)
    return len(slopes) <= len(shape) and all(slope in (1, size) for size, slope in pairs)


_PRELU = elementwise(
    "Prelu",
    "out = in[0] above 0, in[1] * in[0] below",
    rows("T T > T : f16 f32 s16 u8 s8", "u16 u8|u16 > u16"),
    lambda node, arrays: (np.maximum(arrays[0], 0.0) + arrays[1] * np.minimum(arrays[0], 0.0),),
    lambda node, e: e.put(0, e.node("PRelu", [e.value(0), e.value(1)])),
    inputs=TWO_INPUTS,
    work=vector_work(3),
    kind="prelu",
    constraints=(Constraint("the slopes broadcast to the input", _slopes_fit, late=True),),
    onnx=(OnnxRule("PRelu"),),
    samples=(
        Sample(((1, 4, 5, 6), (6,)), static=(1,), ranges={1: (0.05, 0.5)}),
        Sample(((2, 5), (1,)), static=(1,), ranges={1: (0.1, 0.2)}),
    ),
)


def _hard_sigmoid_reference(node: Node, arrays: Arrays) -> Results:
    return (np.clip(node.params["alpha"] * arrays[0] + node.params["beta"], 0.0, 1.0),)


def _hard_sigmoid_lower(node: Node, e: Emitter) -> None:
    if e.rounds_products_alone:
        slope, middle = float(node.params["alpha"]), float(node.params["beta"])
        return e.put(0, e.node("HardSigmoid", [e.value(0)], alpha=slope, beta=middle))
    # One by one, as the runtime's own operator rounds on x86; three nodes take longer than the one.
    product = e.node("Mul", [e.value(0), e.floats(node.params["alpha"])])
    line = e.node("Add", [product, e.floats(node.params["beta"])])
    return e.put(0, e.node("Clip", [line, e.floats(0.0), e.floats(1.0)]))


_NEURONS: dict[str, tuple[Reference, Lower]] = {
    **{word: (opdef.reference, opdef.lower) for word, opdef in _SMOOTH.items()},
    "HARD_SIGMOID": (_hard_sigmoid_reference, _hard_sigmoid_lower),
    "RELU": (relu.clamp_reference, relu.lower_clamp),
    "RELU_MIN_MAX": (relu.clamp_reference, relu.lower_clamp),
    "SOFTPLUS": (softplus_reference, softplus_lower),
}
_WORDS = {number: word for word, number in relu.NEURONS.items()}
_RANGES = {"SIGMOID": (0.0, 1.0), "HARD_SIGMOID": (0.0, 1.0), "TANH": (-1.0, 1.0)}


def _operation_name(node: Node) -> str:
    return _WORDS[node.params["operation"]]


def _filled(node: Node) -> Node:
    """The node with the defaults that its operation has for alpha and beta."""
    defaults = (
        {"alpha": 0.2, "beta": 0.5} if _operation_name(node) == "HARD_SIGMOID" else {"alpha": 1.0, "beta": 1.0}
    )
    set_by_caller = {name: value for name, value in node.params.items() if value is not None}
    return dataclasses.replace(node, params={**defaults, **set_by_caller})


def _is_bounded(node: Node) -> bool:
    low, high = node.params["min_value"], node.params["max_value"]
    return _operation_name(node) != "RELU_MIN_MAX" or (low is not None and high is not None and low <= high)


OPS = (
    *_SMOOTH.values(),
    _PRELU,
    elementwise(
        "ElementWiseNeuron",
        "the activation named by operation, of each element",
        (*_FLOAT_AND_FIXED, *rows("i32 > i32")),
        lambda node, arrays: _NEURONS[_operation_name(node)][0](_filled(node), arrays),
        lambda node, e: _NEURONS[_operation_name(node)][1](_filled(node), e),
        work=vector_work(8),
        result_range=lambda node: _RANGES.get(_operation_name(node)),
        kind="unary",
        params=(
            Param("operation", mandatory=True, choices=relu.NEURONS),
            *(Param(name, DType.FLOAT_32) for name in ("alpha", "beta", "min_value", "max_value")),
            Param("threshold", DType.FLOAT_32, default=-1.0),
        ),
        constraints=(
            Constraint("RELU_MIN_MAX has min_value and max_value, in this order", _is_bounded),
            Constraint(
                "integers take RELU and RELU_MIN_MAX only",
                lambda node: node.input().dtype is not DType.INT_32 or _operation_name(node).startswith("RELU"),
            ),
        ),
        onnx=(
            OnnxRule("HardSigmoid", attrs={"alpha": "alpha", "beta": "beta"}, params={"operation": 2}),
            OnnxRule("Softplus", params={"operation": 7}),
        ),
        samples=tuple(
            Sample(
                ((1, 4, 5, 3),),
                {"operation": word} | ({"min_value": -1.0, "max_value": 1.5} if word == "RELU_MIN_MAX" else {}),
                low=-4.0,
                high=4.0,
                types=("f16", "f32", "u16", "s16", "u8", "s8") + (("i32",) if word.startswith("RELU") else ()),
            )
            for word in relu.NEURONS
        ),
    ),
)
