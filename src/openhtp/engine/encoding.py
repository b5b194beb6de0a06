"""Quantization and rounding as ONNX nodes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.quant import AxisScaleOffset, Encoding, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine.integer_kernels import takes_signed
from openhtp.engine.onnx_graph import OnnxGraph

Array = npt.NDArray[Any]
_IDENTITY = ScaleOffset(1.0, 0)


def encoding_of(spec: TensorSpec) -> Encoding:
    """The tensor's encoding. Without one, stored numbers stand for themselves."""
    return spec.quant if spec.quant is not None else _IDENTITY


def real_values(spec: TensorSpec, stored: Array) -> Array:
    """Real values of stored constant data, as float64; integers stay as they are."""
    if spec.dtype.is_fixed_point:
        return encoding_of(spec).dequantize(stored)
    return stored.astype(np.float64) if spec.dtype.is_float else stored


def zero_points(encoding: Encoding) -> tuple[int, ...]:
    """The stored integers that stand for 0."""
    offsets = (encoding.offset,) if isinstance(encoding, ScaleOffset) else encoding.offsets
    return tuple(-offset for offset in offsets)


def has_operator(dtype: DType, encoding: Encoding) -> bool:
    """Whether ONNX's own quantization operators can express it: the zero point must be storable."""
    if dtype.bits == 32:
        return False
    low, high = dtype.integer_range
    return all(low <= zero <= high for zero in zero_points(encoding))


def dequantize(graph: OnnxGraph, name: str, dtype: DType, encoding: Encoding, axis: int | None) -> str:
    """Real values of a stored tensor. ``axis`` is where the channel axis of a per-axis encoding now is."""
    if has_operator(dtype, encoding):
        scale, zero, attrs = _operands(graph, dtype, encoding, axis)
        return graph.node("DequantizeLinear", [name, scale, zero], **attrs)[0]
    scales, offsets = _spread(encoding)
    # 32-bit integers do not fit a float's mantissa: subtract and scale in double.
    wide = graph.node("Cast", [name], to="float64")[0]
    shifted = graph.node("Add", [wide, graph.const(offsets)])[0]
    return graph.node("Cast", [graph.node("Mul", [shifted, graph.const(scales)])[0]], to="float32")[0]


def quantize(graph: OnnxGraph, name: str, dtype: DType, encoding: Encoding, axis: int | None) -> str:
    """Stored form of real values: nearest integer, ties to even, clipped."""
    if has_operator(dtype, encoding):
        scale, zero, attrs = _operands(graph, dtype, encoding, axis)
        return graph.node("QuantizeLinear", [name, scale, zero], **attrs)[0]
    scales, offsets = _spread(encoding)
    wide = graph.node("Cast", [name], to="float64")[0]
    steps = graph.node("Round", [graph.node("Div", [wide, graph.const(scales)])[0]])[0]
    shifted = graph.node("Sub", [steps, graph.const(offsets)])[0]
    low, high = (graph.const(np.array(bound, np.float64)) for bound in dtype.integer_range)
    return graph.node("Cast", [graph.node("Clip", [shifted, low, high])[0]], to=dtype.numpy.name)[0]


def _spread(encoding: Encoding) -> tuple[Array, Array]:
    if isinstance(encoding, ScaleOffset):
        return np.array(encoding.scale, np.float64), np.array(encoding.offset, np.float64)
    return np.array(encoding.scales, np.float64), np.array(encoding.offsets, np.float64)


def _operands(
    graph: OnnxGraph, dtype: DType, encoding: Encoding, axis: int | None
) -> tuple[str, str, dict[str, Any]]:
    zeros = np.array(zero_points(encoding), dtype.numpy)
    if isinstance(encoding, AxisScaleOffset):
        scales = np.array(encoding.scales, np.float32)
        return graph.const(scales), graph.const(zeros), {"axis": encoding.axis if axis is None else axis}
    scale = np.array(encoding.scale, np.float32)
    return graph.const(scale), graph.const(zeros.reshape(())), {}


def round_to_half(graph: OnnxGraph, name: str) -> str:
    """Round float32 values to the nearest half-precision number.

    The runtime keeps the pair of casts, since removing it would change values.
    """
    return graph.node("Cast", [graph.node("Cast", [name], to="float16")[0]], to="float32")[0]


def clamp_in_steps(dtype: DType, encoding: ScaleOffset, low: float, high: float) -> tuple[int, int]:
    """The stored integers between which a clamped result lies; quantization is monotone, so this is exact."""
    lowest, highest = dtype.integer_range

    def steps(bound: float, infinite: int) -> int:
        return infinite if math.isinf(bound) else int(encoding.quantize(bound, lowest, highest))

    return steps(low, lowest), steps(high, highest)


def integer_weights(dtype: DType, stored: Array, quant: Encoding) -> tuple[DType, Array, Encoding]:
    """8-bit weights as signed numbers: the integer kernels are several times faster with those.

    Where this processor's kernels would compute wrongly with signed numbers, the weights are unsigned. Moving all
    stored numbers and the zero point by 128 changes no real value.
    """
    if dtype is DType.UFIXED_POINT_8:
        moved = (stored.astype(np.int16) - 128).astype(np.int8)
        return (DType.SFIXED_POINT_8, moved, _moved(quant, 128)) if takes_signed(moved) else (dtype, stored, quant)
    if dtype is DType.SFIXED_POINT_8 and not takes_signed(stored):
        moved = (stored.astype(np.int16) + 128).astype(np.uint8)
        return DType.UFIXED_POINT_8, moved, _moved(quant, -128)
    return dtype, stored, quant


def unsigned_tensor(spec: TensorSpec) -> TensorSpec:
    """An 8-bit signed tensor as the engine holds it: unsigned, for the same reason, with the same real values."""
    if spec.dtype is not DType.SFIXED_POINT_8 or spec.kind is TensorKind.STATIC:
        return spec
    quant = spec.quant if spec.quant is not None else ScaleOffset(1.0, 0)
    return dataclasses.replace(spec, dtype=DType.UFIXED_POINT_8, quant=_moved(quant, -128))


def signed_tensor(spec: TensorSpec) -> TensorSpec:
    """The tensor that ``unsigned_tensor`` was made from."""
    quant = spec.quant if spec.quant is not None else ScaleOffset(1.0, 0)
    return dataclasses.replace(spec, dtype=DType.SFIXED_POINT_8, quant=_moved(quant, 128))


def _moved(quant: Encoding, by: int) -> Encoding:
    if isinstance(quant, AxisScaleOffset):
        return AxisScaleOffset(quant.axis, quant.scales, tuple(offset + by for offset in quant.offsets))
    return ScaleOffset(quant.scale, quant.offset + by)


def bias_in_steps(real: npt.NDArray[np.float64], scales: npt.NDArray[np.float64]) -> Array | None:
    """The bias in steps of input scale times weight scale; None if a step is too small for 32 bits."""
    steps = np.rint(real / scales)
    if np.abs(steps).max(initial=0.0) >= 2**31:
        return None
    return steps.astype(np.int32)
