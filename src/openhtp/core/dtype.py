"""Data types of tensors: the API's names and numbers, short names, and the numpy type behind each."""

from __future__ import annotations

import enum
from functools import cached_property

import numpy as np

from openhtp.core import status as st
from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import InvalidArgument


class DType(enum.IntEnum):
    """A tensor's element type; the value is the API's number."""

    INT_8 = 8
    INT_16 = 22
    INT_32 = 50
    INT_64 = 100
    UINT_8 = 264
    UINT_16 = 278
    UINT_32 = 306
    UINT_64 = 356
    FLOAT_16 = 534
    FLOAT_32 = 562
    SFIXED_POINT_4 = 772
    SFIXED_POINT_8 = 776
    SFIXED_POINT_16 = 790
    SFIXED_POINT_32 = 818
    UFIXED_POINT_4 = 1028
    UFIXED_POINT_8 = 1032
    UFIXED_POINT_16 = 1046
    UFIXED_POINT_32 = 1074
    BOOL_8 = 1288

    @property
    def qnn_name(self) -> str:
        """The documented name, e.g. ``QNN_DATATYPE_UFIXED_POINT_8``."""
        return f"QNN_DATATYPE_{self.name}"

    @property
    def short(self) -> str:
        """The short name used in Python, e.g. ``ufixed8``."""
        return _SHORT[self]

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """Type of the arrays that carry it. 4-bit elements take a byte each, in the low nibble."""
        return _NUMPY[self]

    @property
    def itemsize(self) -> int:
        """Bytes of one element in client memory."""
        return _NUMPY[self].itemsize

    @cached_property
    def is_fixed_point(self) -> bool:
        """Whether values are integers that stand for reals through an encoding."""
        return "FIXED_POINT" in self.name

    @cached_property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self in (DType.FLOAT_16, DType.FLOAT_32)

    @cached_property
    def bits(self) -> int:
        """Width of one element in bits."""
        return int(self.name.rsplit("_", 1)[1])

    @cached_property
    def signed(self) -> bool:
        """Whether the stored integers are signed (floats count as signed)."""
        return not self.name.startswith(("U", "BOOL"))

    @cached_property
    def integer_range(self) -> tuple[int, int]:
        """Lowest and highest storable integer."""
        bits = self.bits
        return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if self.signed else (0, (1 << bits) - 1)

    @classmethod
    def parse(cls, value: DType | str | int | np.dtype[np.generic] | type) -> DType:
        """Accept a DType, a short name, an API name or number, or a plain numpy type."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value.removeprefix("QNN_DATATYPE_").upper() in cls.__members__:
            return cls[value.removeprefix("QNN_DATATYPE_").upper()]
        if isinstance(value, str) and value.lower() in _BY_SHORT:
            return _BY_SHORT[value.lower()]
        number = whole_number(value)
        if number is not None and number in cls._value2member_map_:
            return cls(number)
        if isinstance(value, (type, np.dtype)):
            try:
                return _BY_SHORT[np.dtype(value).name]
            except (KeyError, TypeError):
                pass
        raise InvalidArgument(
            f"unknown data type {shown(value)}; expected one of {', '.join(_BY_SHORT)}",
            st.QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM,
        )


def _short_name(dtype: DType) -> str:
    name = dtype.name.lower().replace("_point", "").replace("_", "")
    return "bool" if dtype is DType.BOOL_8 else name


_SHORT = {dtype: _short_name(dtype) for dtype in DType}
_BY_SHORT = {short: dtype for dtype, short in _SHORT.items()}


def _numpy_type(dtype: DType) -> np.dtype[np.generic]:
    if dtype is DType.BOOL_8:
        return np.dtype(np.bool_)
    if dtype.is_float:
        return np.dtype(f"f{dtype.bits // 8}")
    return np.dtype(f"{'i' if dtype.signed else 'u'}{max(8, dtype.bits) // 8}")


_NUMPY = {dtype: _numpy_type(dtype) for dtype in DType}
