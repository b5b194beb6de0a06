"""Constant weights and biases in the form that the runtime's integer kernels take."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.quant import AxisScaleOffset, Encoding, ScaleOffset

Array = npt.NDArray[Any]


def signed_weights(
    activation: DType, dtype: DType, stored: Array, quant: Encoding
) -> tuple[DType, Array, Encoding]:
    """Weights for the integer kernels, which take signed activations with signed weights only.

    Moving all stored numbers and the zero point by 128 changes no real value.
    """
    if activation is not DType.SFIXED_POINT_8 or dtype is not DType.UFIXED_POINT_8:
        return dtype, stored, quant
    moved = (stored.astype(np.int16) - 128).astype(np.int8)
    if isinstance(quant, AxisScaleOffset):
        encoding: Encoding = AxisScaleOffset(quant.axis, quant.scales, tuple(o + 128 for o in quant.offsets))
    else:
        encoding = ScaleOffset(quant.scale, quant.offset + 128)
    return DType.SFIXED_POINT_8, moved, encoding


def bias_in_steps(real: npt.NDArray[np.float64], scales: npt.NDArray[np.float64]) -> Array | None:
    """The bias in steps of input scale times weight scale; None if a step is too small for 32 bits."""
    steps = np.rint(real / scales)
    if np.abs(steps).max(initial=0.0) >= 2**31:
        return None
    return steps.astype(np.int32)
