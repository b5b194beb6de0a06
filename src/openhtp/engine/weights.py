"""Constant weights and biases in the form that the runtime's integer kernels take."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.quant import AxisScaleOffset, Encoding, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec

Array = npt.NDArray[Any]


def signed_weights(dtype: DType, stored: Array, quant: Encoding) -> tuple[DType, Array, Encoding]:
    """8-bit weights as signed numbers: the integer kernels are several times faster with those.

    Moving all stored numbers and the zero point by 128 changes no real value.
    """
    if dtype is not DType.UFIXED_POINT_8:
        return dtype, stored, quant
    moved = (stored.astype(np.int16) - 128).astype(np.int8)
    return DType.SFIXED_POINT_8, moved, _moved(quant, 128)


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
