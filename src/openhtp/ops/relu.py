"""Clamps: out = min(max(in[0], low), high)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._elementwise import elementwise
from openhtp.ops._node import Arrays, Emitter, Node, Results, exact_forms
from openhtp.ops._opdef import Constraint, OnnxRule, OpDef, Param, Sample, TypeRow, rows

# The operations of ElementWiseNeuron, two of which are clamps.
NEURONS = {
    "ELU": 0,
    "GELU": 1,
    "HARD_SIGMOID": 2,
    "HARD_SWISH": 3,
    "RELU": 4,
    "RELU_MIN_MAX": 5,
    "SIGMOID": 6,
    "SOFTPLUS": 7,
    "TANH": 8,
}
_ALL = rows("T > T : f16 f32 u16 s16 u8 s8")
_SAMPLE = Sample(((1, 6, 5, 4),), low=-3.0, high=8.0)
_FIXED = {"Relu": (0.0, math.inf), "Relu1": (-1.0, 1.0), "Relu6": (0.0, 6.0)}
CLAMPS = frozenset((*_FIXED, "ReluMinMax", "ElementWiseNeuron"))
"""The ops that may be clamps."""


def clamp_bounds(node: Node) -> tuple[float, float] | None:
    """Lowest and highest result of a clamp op; None if the node is no clamp."""
    operation = node.params.get("operation") if node.op == "ElementWiseNeuron" else None
    if node.op == "ReluMinMax" or operation == NEURONS["RELU_MIN_MAX"]:
        return node.params["min_value"], node.params["max_value"]
    if operation == NEURONS["RELU"]:
        return _FIXED["Relu"]
    return _FIXED.get(node.op)


def is_relu(node: Node) -> bool:
    """Whether a node is a plain Relu, under either of its names."""
    return node.op == "Relu" or (node.op == "ElementWiseNeuron" and node.params["operation"] == NEURONS["RELU"])


def is_always_folded(node: Node) -> bool:
    """Whether a convolution can take in the clamp that follows it, whatever the encodings."""
    return is_relu(node) or (clamp_bounds(node) is not None and node.op not in ("Relu1", "Relu6"))


def clamp_reference(node: Node, arrays: Arrays) -> Results:
    """Clamp real values."""
    bounds = clamp_bounds(node)
    assert bounds is not None
    return (np.clip(arrays[0], *bounds).astype(arrays[0].dtype),)


def lower_clamp(node: Node, e: Emitter) -> None:
    """Clamp stored integers where the encoding stays, otherwise real values."""
    read, put = exact_forms(e)
    put(0, read(0), clamp_bounds(node))


def _clamp(
    name: str, summary: str, types: tuple[TypeRow, ...] = _ALL, sample: Sample = _SAMPLE, **facts: Any
) -> OpDef:
    return elementwise(
        name,
        summary,
        types,
        clamp_reference,
        lower_clamp,
        kind="clamp",
        values_kept=True,
        samples=(sample,),
        **facts,
    )


OPS = (
    _clamp("Relu", "out = max(in[0], 0)", onnx=(OnnxRule("Relu"),)),
    _clamp("Relu1", "out = min(max(in[0], -1), 1)"),
    _clamp("Relu6", "out = min(max(in[0], 0), 6)"),
    _clamp(
        "ReluMinMax",
        "out = min(max(in[0], min_value), max_value)",
        rows("T > T : f16 f32 u16 u8 s8 i32"),
        Sample(((1, 6, 5, 4),), {"min_value": -1.5, "max_value": 2.5}, low=-3.0, high=8.0),
        params=tuple(Param(name, DType.FLOAT_32, mandatory=True) for name in ("min_value", "max_value")),
        constraints=(
            Constraint(
                "min_value is at most max_value",
                lambda node: bool(node.params["min_value"] <= node.params["max_value"]),
            ),
        ),
    ),
)
