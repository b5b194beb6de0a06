"""Data types: names, numbers, widths, and the numpy types behind them."""

from __future__ import annotations

import numpy as np
import pytest

from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument


@pytest.mark.parametrize("dtype", DType)
def test_every_name_and_number_is_read_back(dtype: DType) -> None:
    spellings = (dtype, dtype.short, dtype.short.upper(), dtype.name, dtype.qnn_name, dtype.value)
    assert [DType.parse(spelling) for spelling in spellings] == [dtype] * len(spellings)


def test_names_and_numbers_are_distinct() -> None:
    assert len({dtype.short for dtype in DType}) == len(DType)
    assert len({dtype.value for dtype in DType}) == len(DType) == len(DType.__members__)


@pytest.mark.parametrize("dtype", DType)
def test_the_number_holds_the_width(dtype: DType) -> None:
    """The API writes the width as the low decimal-looking hex digits: 0x0408 is 8 bits, 0x0416 is 16."""
    assert int(f"{dtype.value & 0xFF:x}") == dtype.bits


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if not dtype.is_float and dtype is not DType.BOOL_8])
def test_the_range_is_that_of_the_width(dtype: DType) -> None:
    low, high = dtype.integer_range
    assert high - low + 1 == 1 << dtype.bits
    assert (low < 0) is dtype.signed is (dtype.numpy.kind == "i")
    held = np.iinfo(dtype.numpy)
    assert held.min <= low
    assert high <= held.max
    assert dtype.itemsize * 8 == max(8, dtype.bits)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (np.float32, DType.FLOAT_32),
        (np.dtype("uint8"), DType.UINT_8),
        (np.bool_, DType.BOOL_8),
        ("ufixed8", DType.UFIXED_POINT_8),
        ("QNN_DATATYPE_SFIXED_POINT_16", DType.SFIXED_POINT_16),
        (0x0408, DType.UFIXED_POINT_8),
    ],
)
def test_what_users_write(given: object, wanted: DType) -> None:
    assert DType.parse(given) is wanted  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["u8", "", "QNN_DATATYPE_", 7, -1, np.complex64, dict, None, 1.5])
def test_what_is_no_type_is_told(given: object) -> None:
    with pytest.raises(InvalidArgument, match="unknown data type") as caught:
        DType.parse(given)  # type: ignore[arg-type]
    assert caught.value.name == "QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM"
    assert "float32" in caught.value.message


def test_kinds_exclude_each_other() -> None:
    for dtype in DType:
        assert not (dtype.is_float and dtype.is_fixed_point)
    assert [dtype.short for dtype in DType if dtype.is_float] == ["float16", "float32"]
    assert sum(dtype.is_fixed_point for dtype in DType) == 8
