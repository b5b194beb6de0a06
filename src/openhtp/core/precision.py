"""The formats in which graphs and kernels compute. They decide the matrix unit's rate and the bytes moved."""

from __future__ import annotations

import enum
import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.checks import shown
from openhtp.core.errors import InvalidArgument
from openhtp.core.tensor import TensorSpec


class FloatPrecision(enum.StrEnum):
    """The HTP rounds every result to half precision unless told otherwise."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"


def half_rounded(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Numbers as the HTP computes with them; those that are too large become infinite, as they do there."""
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(np.float32)


def half_constant(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Constants as an HTP holds them: finite ones stay finite. A mask of -1e9 times 0 is 0, and not NaN."""
    largest = float(np.finfo(np.float16).max)
    return half_rounded(np.where(np.isfinite(array), np.clip(array, -largest, largest), array))


class NumberFormat(enum.Enum):
    """Bits of weights (w) and activations (a); ``float`` is half precision, as the HTP computes."""

    FLOAT = "float"
    W8A8 = "w8a8"
    W8A16 = "w8a16"

    @property
    def activation_bytes(self) -> int:
        """Bytes of one element of an activation."""
        return 1 if self is NumberFormat.W8A8 else 2

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight."""
        return 2 if self is NumberFormat.FLOAT else 1

    @classmethod
    def parse(cls, value: NumberFormat | str) -> NumberFormat:
        """Accept a member or its value in any case."""
        if isinstance(value, cls):
            return value
        for member in cls:
            if isinstance(value, str) and value.lower() == member.value:
                return member
        raise InvalidArgument(f"precision {shown(value)} is unknown; expected float, w8a8 or w8a16")


def precision_of(tensors: tuple[TensorSpec, ...]) -> NumberFormat | None:
    """The format that the tensors of one kernel imply; None if all are integers, which have no precision."""
    precision = None
    for spec in tensors:
        if spec.dtype.is_fixed_point:
            return _fixed(spec.dtype.bits)
        if spec.dtype.is_float:
            precision = NumberFormat.FLOAT
    return precision


@functools.cache
def _fixed(bits: int) -> NumberFormat:
    return NumberFormat.W8A8 if bits <= 8 else NumberFormat.W8A16
