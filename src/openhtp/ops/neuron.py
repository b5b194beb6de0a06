"""ElementWiseNeuron: an activation named by a parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops import activation, elementwise_unary, relu
from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node
from openhtp.ops._onnx import OnnxRule
from openhtp.ops._opdef import Constraint, OpDef, Param, Port, Sample, vector_work
from openhtp.ops._shapes import same_as_input
from openhtp.ops._tiles import split_anywhere
from openhtp.ops._types import rows

_WORDS = {number: word for word, number in relu.NEURONS.items()}
_PLAIN = {"GELU": "Gelu", "HARD_SWISH": "HardSwish", "SIGMOID": "Sigmoid", "TANH": "Tanh"}
_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "GELU": activation.gelu,
    "HARD_SWISH": activation.hard_swish,
    "SIGMOID": activation.sigmoid,
    "TANH": np.tanh,
}
_RANGES = {"SIGMOID": (0.0, 1.0), "HARD_SIGMOID": (0.0, 1.0), "TANH": (-1.0, 1.0)}


def _word(node: Node) -> str:
    return _WORDS[node.params["operation"]]


def _slope(node: Node) -> float:
    alpha = node.params["alpha"]
    return float(alpha) if alpha is not None else 0.2


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    word, x = _word(node), arrays[0]
    if word in _FUNCTIONS:
        return (_FUNCTIONS[word](x),)
    if word in ("RELU", "RELU_MIN_MAX"):
        return relu.clamp_reference(node, arrays)
    if word == "SOFTPLUS":
        return elementwise_unary.softplus_reference(_filled(node), arrays)
    if word == "ELU":
        return activation.elu_reference(_filled(node), arrays)
    return (np.clip(_slope(node) * x + _filled(node).params["beta"], 0.0, 1.0),)


def _lower(node: Node, e: Emitter) -> None:
    word = _word(node)
    if word in _PLAIN:
        return e.put(0, e.node(_PLAIN[word], [e.value(0)]))
    if word in ("RELU", "RELU_MIN_MAX"):
        return relu.lower_clamp(node, e)
    if word == "SOFTPLUS":
        return elementwise_unary.softplus_lower(_filled(node), e)
    if word == "ELU":
        return activation.elu_lower(_filled(node), e)
    beta = _filled(node).params["beta"]
    return e.put(0, e.node("HardSigmoid", [e.value(0)], alpha=_slope(node), beta=beta))


def _filled(node: Node) -> Node:
    """The node with the defaults that its operation has for alpha and beta."""
    defaults = {"alpha": 1.0, "beta": 0.5 if _word(node) == "HARD_SIGMOID" else 1.0}
    given = {name: value for name, value in node.params.items() if value is not None}
    return Node(node.op, node.name, node.inputs, node.outputs, {**defaults, **given}, node.statics)


def _is_bounded(node: Node) -> bool:
    low, high = node.params["min_value"], node.params["max_value"]
    return _word(node) != "RELU_MIN_MAX" or (low is not None and high is not None and low <= high)


_FLOATS = tuple(Param(name, DType.FLOAT_32) for name in ("alpha", "beta", "min_value", "max_value"))

OPS = (
    OpDef(
        name="ElementWiseNeuron",
        summary="the activation named by operation, of each element",
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"),),
        types=rows("T > T : f16 f32 u16 s16 u8 s8", "i32 > i32"),
        infer=same_as_input,
        reference=_reference,
        lower=_lower,
        work=vector_work(8),
        result_range=lambda node: _RANGES.get(_word(node)),
        kind="unary",
        params=(
            Param("operation", mandatory=True, choices=relu.NEURONS),
            *_FLOATS,
            Param("threshold", DType.FLOAT_32, default=-1.0),
        ),
        constraints=(
            Constraint("RELU_MIN_MAX has min_value and max_value, in this order", _is_bounded),
            Constraint(
                "integers take RELU and RELU_MIN_MAX only",
                lambda node: node.input().dtype is not DType.INT_32 or _word(node).startswith("RELU"),
            ),
        ),
        layout=Layout.ANY,
        tile=split_anywhere,
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
