"""Clamps: out = min(max(in[0], low), high)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node
from openhtp.ops._onnx import OnnxRule
from openhtp.ops._opdef import Constraint, OpDef, Param, Port, Sample
from openhtp.ops._shapes import same_as_input
from openhtp.ops._tiles import split_anywhere
from openhtp.ops._types import TypeRow, rows

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
_SAMPLE = Sample(((1, 6, 5, 4),), low=-3.0, high=8.0)
_FIXED = {"Relu": (0.0, math.inf), "Relu1": (-1.0, 1.0), "Relu6": (0.0, 6.0)}


def clamp_bounds(node: Node) -> tuple[float, float] | None:
    """Lowest and highest result of a clamp op; None if the node is no clamp."""
    operation = node.params.get("operation") if node.op == "ElementWiseNeuron" else None
    if node.op == "ReluMinMax" or operation == NEURONS["RELU_MIN_MAX"]:
        return node.params["min_value"], node.params["max_value"]
    if operation == NEURONS["RELU"]:
        return _FIXED["Relu"]
    return _FIXED.get(node.op)


def clamp_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Clamp real values."""
    bounds = clamp_bounds(node)
    assert bounds is not None
    return (np.clip(arrays[0], *bounds).astype(arrays[0].dtype),)


def lower_clamp(node: Node, e: Emitter) -> None:
    """Clamp stored integers where the encoding stays, else real values."""
    if e.same_encoding():
        e.put_stored(0, e.stored(0), clamp_bounds(node))
    else:
        e.put(0, e.value(0), clamp_bounds(node))


def _clamp(
    name: str, summary: str, types: tuple[TypeRow, ...], onnx: tuple[OnnxRule, ...], sample: Sample = _SAMPLE
) -> OpDef:
    with_bounds = name == "ReluMinMax"
    return OpDef(
        name=name,
        summary=summary,
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"),),
        types=types,
        infer=same_as_input,
        reference=clamp_reference,
        lower=lower_clamp,
        kind="clamp",
        params=(
            (
                Param("min_value", DType.FLOAT_32, mandatory=True),
                Param("max_value", DType.FLOAT_32, mandatory=True),
            )
            if with_bounds
            else ()
        ),
        constraints=(
            (
                Constraint(
                    "min_value is at most max_value",
                    lambda node: bool(node.params["min_value"] <= node.params["max_value"]),
                ),
            )
            if with_bounds
            else ()
        ),
        layout=Layout.ANY,
        values_kept=True,
        tile=split_anywhere,
        onnx=onnx,
        samples=(sample,),
    )


_ALL = rows("T > T : f16 f32 u16 s16 u8 s8")
_BOUNDED = rows("T > T : f16 f32 u16 u8 s8 i32")

OPS = (
    _clamp("Relu", "out = max(in[0], 0)", _ALL, (OnnxRule("Relu"),)),
    _clamp("Relu1", "out = min(max(in[0], -1), 1)", _ALL, ()),
    _clamp("Relu6", "out = min(max(in[0], 0), 6)", _ALL, ()),
    _clamp(
        "ReluMinMax",
        "out = min(max(in[0], min_value), max_value)",
        _BOUNDED,
        (),
        Sample(((1, 6, 5, 4),), {"min_value": -1.5, "max_value": 2.5}, low=-3.0, high=8.0),
    ),
)
