"""QNN types and encodings of ONNX types, scales and zero points.

Activations are always stored unsigned, because every HTP op takes the unsigned types and only some take the signed
ones. A signed tensor of 8 or 16 bits becomes unsigned when its integers and its offset move by half the range.
Weights stay as they are. Plain integers of any width have 32 bits inside the graph, because the HTP computes in 32
bits. At the edges of the graph they have the type that the client sees, and a Cast converts them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.errors import BadModel, InvalidArgument, UnsupportedFeature
from openhtp.core.quant import HIGHEST_WEIGHT_16, AxisScaleOffset, Encoding, ScaleOffset
from openhtp.frontend.model import Array, OnnxNode, ValueType

_PLAIN = {
    "float16": DType.FLOAT_16,
    "float32": DType.FLOAT_32,
    "float64": DType.FLOAT_32,
    **{f"{sign}int{bits}": DType.INT_32 for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bool": DType.BOOL_8,
}
# Types that the client sees at the edges of the graph. The HTP casts no plain integers of these signed and 16-bit
# types. There they are fixed point in steps of 1, which has the same numbers.
_EDGE: dict[str, tuple[DType, Encoding | None]] = {
    **{name: (dtype, None) for name, dtype in _PLAIN.items()},
    "int8": (DType.SFIXED_POINT_8, ScaleOffset(1.0)),
    "int16": (DType.SFIXED_POINT_16, ScaleOffset(1.0)),
    "uint16": (DType.UFIXED_POINT_16, ScaleOffset(1.0)),
    "uint8": (DType.UINT_8, None),
    "uint32": (DType.UINT_32, None),
    "uint64": (DType.UINT_64, None),
    "int64": (DType.INT_64, None),
}
_FIXED = {
    "int8": DType.SFIXED_POINT_8,
    "int16": DType.SFIXED_POINT_16,
    "int32": DType.SFIXED_POINT_32,
    "uint8": DType.UFIXED_POINT_8,
    "uint16": DType.UFIXED_POINT_16,
}
_UNSIGNED = {
    DType.SFIXED_POINT_8: DType.UFIXED_POINT_8,
    DType.SFIXED_POINT_16: DType.UFIXED_POINT_16,
}

Fixed = tuple[DType, Encoding]


def plain_type(dtype: np.dtype[np.generic]) -> DType:
    """QNN type of a value without encoding, inside the graph."""
    kind = _PLAIN.get(dtype.name)
    if kind is None:
        raise UnsupportedFeature(f"element type {dtype} is not supported by the HTP")
    return kind


def edge_type(dtype: np.dtype[np.generic]) -> tuple[DType, Encoding | None]:
    """QNN type and encoding of an input or output of the graph."""
    plain_type(dtype)
    return _EDGE[dtype.name]


def read_encoding(node: OnnxNode, types: Mapping[str, ValueType], constants: Mapping[str, Array]) -> Fixed:
    """Type and encoding that a QuantizeLinear or DequantizeLinear names, as stored in the file."""
    if not node.has(0) or not node.has(1):
        raise BadModel(f"{node.title} has no scale")
    shape = types[node.inputs[0]].shape
    scale = constants.get(node.inputs[1])
    integers = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    zero = constants.get(node.inputs[2]) if node.has(2) else np.zeros((), types[integers].dtype)
    if scale is None or zero is None:
        raise UnsupportedFeature(f"{node.title}: scale and zero point are computed; they must be constants")
    if node.attr("block_size", 0):
        raise UnsupportedFeature(f"{node.title}: blockwise quantization is not supported; use per-channel scales")
    if zero.dtype.name not in _FIXED:
        raise UnsupportedFeature(f"{node.title}: cannot quantize to {zero.dtype}")
    dtype = _FIXED[zero.dtype.name]
    if scale.size == 1 and zero.size == 1:
        return dtype, _checked(node, float(scale.reshape(-1)[0]), -int(zero.reshape(-1)[0]))
    axis = node.attr("axis", 1)
    axis += len(shape) if axis < 0 else 0
    zeros = np.broadcast_to(zero.reshape(-1), scale.shape) if scale.ndim == 1 else zero
    if scale.ndim != 1 or not 0 <= axis < len(shape) or shape[axis] != scale.size or zeros.size != scale.size:
        raise BadModel(
            f"{node.title}: {list(scale.shape)} scales do not fit axis {axis} of the shape {list(shape)}"
        )
    try:
        return dtype, AxisScaleOffset(axis, tuple(scale.tolist()), tuple(-int(each) for each in zeros))
    except InvalidArgument as error:
        raise BadModel(f"{node.title}: {error.message}") from error


def _checked(node: OnnxNode, scale: float, offset: int) -> ScaleOffset:
    try:
        return ScaleOffset(scale, offset)
    except InvalidArgument as error:
        raise BadModel(f"{node.title}: {error.message}") from error


def activation(dtype: DType, quant: Encoding) -> Fixed:
    """The unsigned form of an activation's type and encoding. The real values do not change."""
    unsigned = _UNSIGNED.get(dtype)
    if unsigned is None:
        return dtype, quant
    half = 1 << (dtype.bits - 1)
    if isinstance(quant, ScaleOffset):
        return unsigned, ScaleOffset(quant.scale, quant.offset - half)
    return unsigned, AxisScaleOffset(quant.axis, quant.scales, tuple(offset - half for offset in quant.offsets))


def widened(quant: ScaleOffset) -> ScaleOffset:
    """The 16-bit unsigned encoding that holds every number of an 8-bit unsigned one exactly."""
    return ScaleOffset(quant.scale / 257.0, quant.offset * 257)


def sixteen_bit_weights(stored: Array, dtype: DType, quant: Encoding) -> Encoding | None:
    """The encoding that 16-bit weights need on an HTP, or None if they have it already.

    The weights must be signed and symmetric. The hardware has no codes above 0x7F7F, so the step becomes wider.
    """
    offsets = (quant.offset,) if isinstance(quant, ScaleOffset) else quant.offsets
    if dtype is DType.SFIXED_POINT_16 and not any(offsets) and int(stored.max(initial=0)) <= HIGHEST_WEIGHT_16:
        return None
    if isinstance(quant, AxisScaleOffset):
        others = tuple(axis for axis in range(stored.ndim) if axis != quant.axis)
        most = np.abs(quant.dequantize(stored)).max(axis=others)
        return AxisScaleOffset(quant.axis, tuple(float(one) / HIGHEST_WEIGHT_16 or 1.0 for one in most))
    return symmetric_16(quant.dequantize(stored))


def symmetric_16(real: Array) -> ScaleOffset:
    """The encoding of 16-bit weights that are these numbers."""
    return ScaleOffset(float(np.abs(real).max(initial=0.0)) / HIGHEST_WEIGHT_16 or 1.0)


def centered_16(real: Array) -> ScaleOffset:
    """The unsigned 16-bit encoding with 0 in the middle that covers these numbers."""
    return ScaleOffset(float(np.abs(real).max(initial=0.0)) / 32767.0 or 1.0, -32768)


def recentered(quant: ScaleOffset) -> ScaleOffset:
    """The unsigned 16-bit encoding with 0 in the middle that covers another's range."""
    if quant.offset == -32768:
        return quant
    return ScaleOffset(quant.scale * max(-quant.offset, 65535 + quant.offset) / 32767.0, -32768)


def covering(real: Array, dtype: DType) -> ScaleOffset:
    """An encoding that covers these numbers and 0."""
    low, high = min(float(np.min(real, initial=0.0)), 0.0), max(float(np.max(real, initial=0.0)), 0.0)
    least, most = dtype.integer_range
    scale = (high - low) / (most - least) or 1.0
    return ScaleOffset(scale, -round(least - low / scale))
