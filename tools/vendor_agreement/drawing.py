"""Random data and encodings for the tensors of a node.

*Usual* encodings are those that converters produce: symmetric 16 bits and weights, one encoding for values that
are only moved, the fixed ranges of Softmax and its like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import AxisScaleOffset, Encoding, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ops import Node, OpDef, find_op
from openhtp.ops._resolve import filled_params
from vendor_agreement.rows import Row

Array = npt.NDArray[Any]


def moves_values(op: str) -> bool:
    """Whether converters give an operation's results the encoding of its inputs."""
    opdef = find_op(op)
    return opdef.values_kept or opdef.shares_encoding


def narrowed(rng: np.random.Generator, low: float, high: float, number: int) -> tuple[float, float]:
    """Another part of the range in every round but the first, with the same signs: domains are kept."""
    part = 1.0 if number == 0 else float(rng.uniform(0.3, 1.0))
    return low * part if low < 0 else low, high * part if high > 0 and low <= 0 else high


def input_encoding(
    row: Row,
    spec: TensorSpec,
    index: int,
    bounds: tuple[float, float],
    before: Sequence[TensorSpec | None],
    usual: bool,
    rng: np.random.Generator,
) -> Encoding:
    """The encoding of an input. ``usual`` is as converters write it; ``before`` are the inputs that precede it."""
    weight, weights = before[1] if len(before) > 1 else None, find_op(row.op).weights
    if index == 2 and weights is not None and spec.dtype.bits == 32 and before[0] and weight:
        return _bias_encoding(before[0].quant, weight.quant)
    axis = None if weights is None else weights.channel_axis
    if index == 1 and axis is not None and spec.dtype is DType.SFIXED_POINT_8 and not usual:
        largest = max(-bounds[0], bounds[1]) / 127
        return AxisScaleOffset(axis, tuple(_single(s * largest) for s in rng.uniform(0.5, 1.0, spec.shape[axis])))
    if usual and before and before[0] and before[0].dtype == spec.dtype and moves_values(row.op):
        return before[0].quant or _covering(spec.dtype, *bounds)
    symmetric = usual and (spec.kind is TensorKind.STATIC or spec.dtype.bits == 16)
    return _covering(spec.dtype, *bounds, symmetric=symmetric)


def _bias_encoding(activation: Encoding | None, weight: Encoding | None) -> Encoding:
    """A 32-bit bias is in steps of a product, as every converter writes it."""
    assert isinstance(activation, ScaleOffset)
    if isinstance(weight, AxisScaleOffset):
        return AxisScaleOffset(0, tuple(_single(scale * activation.scale) for scale in weight.scales))
    assert isinstance(weight, ScaleOffset)
    return ScaleOffset(_single(activation.scale * weight.scale), 0)


def output_encoding(
    row: Row,
    spec: TensorSpec,
    result: Array,
    inputs: Sequence[TensorSpec | None],
    usual: bool,
    kept: bool,
    bounds: tuple[float, float] | None,
    rng: np.random.Generator,
) -> Encoding | None:
    """The encoding of an output whose exact values are known; ``kept`` if all of them are in the first input.

    ``bounds`` is the range that the operation's results always have, if there is one.
    """
    if find_op(row.op).by_stored_number:
        return spec.quant
    if usual and result.dtype == np.bool_:
        return ScaleOffset(1.0, -spec.dtype.integer_range[0])
    source = inputs[0]
    if usual and source is not None and source.dtype == spec.dtype and kept:
        return source.quant
    if usual and bounds is not None:
        low, high = bounds
        steps = 1 << spec.dtype.bits
        return ScaleOffset((high - low) / steps, -spec.dtype.integer_range[0] + round(low * steps / (high - low)))
    real = np.asarray(result, np.float64)
    slack = 1.0 if usual else float(rng.uniform(1.0, 1.1))
    symmetric = usual and spec.dtype.bits == 16
    return _covering(spec.dtype, float(real.min()) * slack, float(real.max()) * slack, symmetric=symmetric)


def _covering(dtype: DType, low: float, high: float, *, symmetric: bool = False) -> ScaleOffset:
    """An encoding whose range just holds these values, and zero."""
    low, high = min(low, 0.0), max(high, 0.0)
    smallest, largest = dtype.integer_range
    most = max(-low, high, 1e-3)
    if dtype.bits == 32:
        return ScaleOffset(_single(most / 2**20), 0)
    if symmetric:
        return ScaleOffset(_single(most / (1 << (dtype.bits - 1))), 0 if dtype.signed else -(largest + 1) // 2)
    scale = _single(max(high - low, 1e-3) / (largest - smallest))
    return ScaleOffset(scale, round(low / scale) - smallest)


def _single(scale: float) -> float:
    """Scales travel as 32-bit floats; both sides must start from the same number."""
    return float(np.float32(scale))


def draw_data(rng: np.random.Generator, spec: TensorSpec, low: float, high: float) -> Array:
    """Stored data for a tensor, its real values between ``low`` and ``high``."""
    if spec.dtype is DType.BOOL_8:
        return rng.integers(0, 2, spec.shape).astype(np.bool_)
    if spec.quant is not None:
        drawn = rng.uniform(low, high, spec.shape)
        return spec.quant.quantize(drawn, *spec.dtype.integer_range).astype(spec.dtype.numpy)
    if spec.dtype.is_float:
        return rng.uniform(low, high, spec.shape).astype(np.float16).astype(spec.dtype.numpy)
    least = max(int(np.ceil(low)), 0 if not spec.dtype.signed else int(np.ceil(low)))
    return rng.integers(least, max(least + 1, int(np.floor(high)) + 1), spec.shape).astype(spec.dtype.numpy)


def resolved_node(opdef: OpDef, call: OpCall, stored: Mapping[str, Array]) -> Node:
    """The node as an operation's functions take it, before it is checked."""
    bare = Node(call.op, call.name, call.inputs, call.outputs, {}, stored)
    return Node(call.op, call.name, call.inputs, call.outputs, filled_params(opdef, bare, call), stored)


def real_values(spec: TensorSpec, stored: Array) -> Array:
    """What stored numbers stand for; plain integers stand for themselves."""
    if spec.quant is not None:
        return spec.quant.dequantize(stored)
    return stored.astype(np.float64) if spec.dtype.is_float else stored


def real_inputs(call: OpCall, stored: Mapping[str, Array]) -> list[Array]:
    """What the stored inputs of a call stand for; nothing for those left out."""
    return [np.zeros(0) if spec is None else real_values(spec, stored[spec.name]) for spec in call.inputs]
