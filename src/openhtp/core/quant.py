"""How stored integers stand for real numbers: ``real = scale * (stored + offset)``.

The offset is the negative of the zero point used by ONNX: u8 with zero point 128 has offset -128.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.checks import items_of, real_number, shown, type_in_words, whole_number
from openhtp.core.errors import InvalidArgument

HIGHEST_WEIGHT_16 = 0x7F7F
"""The highest code of 16-bit weights that the HTP's hardware has."""


@dataclass(frozen=True, slots=True)
class ScaleOffset:
    """One scale and offset for the whole tensor.

    Examples:
        >>> ScaleOffset(0.5, -128).dequantize(np.array([128, 130], np.uint8)).tolist()
        [0.0, 1.0]
    """

    scale: float
    offset: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _checked_scale(self.scale, "scale"))
        object.__setattr__(self, "offset", _checked_offset(self.offset, "offset"))

    @property
    def zero_point(self) -> int:
        """The stored integer that stands for 0.0."""
        return -self.offset

    def dequantize(self, stored: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
        """Real values of stored integers."""
        return self.scale * (_numbers(stored) + self.offset)

    def quantize(self, real: npt.ArrayLike, lowest: int, highest: int) -> npt.NDArray[np.int64]:
        """Nearest stored integers (ties to even), clipped to the given range."""
        return _round(real, self.scale, self.offset, lowest, highest)


@dataclass(frozen=True, slots=True)
class AxisScaleOffset:
    """One scale and offset per index of ``axis`` (per channel)."""

    axis: int
    scales: tuple[float, ...]
    offsets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        axis = whole_number(self.axis)
        if axis is None:
            _refuse(f"quantization axis is {shown(self.axis)}; expected a whole number")
        scales, offsets = _listed(self.scales, "scales"), _listed(self.offsets, "offsets")
        object.__setattr__(self, "axis", axis)
        object.__setattr__(self, "scales", tuple(_checked_scale(s, f"scales[{i}]") for i, s in enumerate(scales)))
        checked = tuple(_checked_offset(o, f"offsets[{i}]") for i, o in enumerate(offsets))
        object.__setattr__(self, "offsets", checked or (0,) * len(self.scales))
        if not self.scales or len(self.scales) != len(self.offsets):
            _refuse(
                f"per-axis encoding has {len(self.scales)} scales and {len(self.offsets)} offsets;"
                " expected the same number of each, at least one"
            )

    def dequantize(self, stored: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
        """Real values of stored integers."""
        numbers = _numbers(stored)
        scales, offsets = self._along_axis(numbers.shape)
        real: npt.NDArray[np.float64] = scales * (numbers + offsets)
        return real

    def quantize(self, real: npt.ArrayLike, lowest: int, highest: int) -> npt.NDArray[np.int64]:
        """Nearest stored integers (ties to even), clipped to the given range."""
        numbers = _numbers(real)
        return _round(numbers, *self._along_axis(numbers.shape), lowest, highest)

    def _along_axis(self, sizes: tuple[int, ...]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        if not -len(sizes) <= self.axis < len(sizes) or sizes[self.axis] not in (1, len(self.scales)):
            raise InvalidArgument(
                f"an array of shape {list(sizes)}; expected {len(self.scales)} elements on axis {self.axis}",
                st.QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM,
            )
        shape = [1] * len(sizes)
        shape[self.axis] = -1
        return np.array(self.scales).reshape(shape), np.array(self.offsets, np.float64).reshape(shape)


Encoding = ScaleOffset | AxisScaleOffset


_MOST_STORED = 1 << 32


def _numbers(value: object) -> npt.NDArray[np.float64]:
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{type_in_words(value)} that holds no numbers: {error}") from error


def _round(
    real: npt.ArrayLike,
    scale: float | npt.NDArray[np.float64],
    offset: int | npt.NDArray[np.float64],
    lowest: int,
    highest: int,
) -> npt.NDArray[np.int64]:
    for bound in (lowest, highest):
        if isinstance(bound, bool) or not isinstance(bound, int | np.integer) or abs(bound) > _MOST_STORED:
            raise InvalidArgument(
                f"a range of stored integers with {type_in_words(bound)}; expected whole numbers of 32 bits"
            )
    stored = np.rint(_numbers(real) / scale) - offset
    return np.asarray(np.clip(stored, lowest, highest), np.int64)


def _listed(value: object, what: str) -> tuple[object, ...]:
    items = items_of(value)
    if items is None:
        _refuse(f"quantization {what} is {shown(value)}; expected a sequence of numbers")
    return tuple(items)


def _checked_scale(value: object, what: str) -> float:
    scale = real_number(value)
    if scale is None or scale <= 0:
        _refuse(f"quantization {what} is {shown(value)}; expected a finite number above 0")
    return scale


def _checked_offset(value: object, what: str) -> int:
    # Files hold offsets as floats, too, where they are whole.
    real = real_number(value)
    offset = int(real) if real is not None and real.is_integer() else None
    if offset is None or not -(1 << 31) <= offset < 1 << 32:
        _refuse(f"quantization {what} is {shown(value)}; expected a whole number of 32 bits")
    return offset


def _refuse(problem: str) -> NoReturn:
    raise InvalidArgument(problem, st.QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM)
