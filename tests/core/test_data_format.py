"""Data formats by name and number, and on their way through a graph, a binary and C structures."""

from __future__ import annotations

import numpy as np
import pytest

import openhtp as htp
from openhtp.abi.reading import spec_of
from openhtp.abi.writing import tensor_struct
from openhtp.core.dtype import DType
from openhtp.core.enumerations import DataFormat
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.program.records import TensorRecord, tensor_spec

NATIVE = DataFormat.HMX_WEIGHT_LAYOUT


@pytest.mark.parametrize("given", ["hmx_weight_layout", "QNN_TENSOR_DATA_FORMAT_HMX_WEIGHT_LAYOUT", 8, NATIVE])
def test_names_and_numbers(given: object) -> None:
    assert DataFormat.parse(given) is NATIVE  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["sparse", 7, -1, None, 8.5, np.int64(3)])
def test_others_are_refused_with_the_choice(given: object) -> None:
    with pytest.raises(htp.QnnError, match="expected one of dense, hmx_weight_layout"):
        DataFormat.parse(given)  # type: ignore[arg-type]


def test_flat_has_the_api_name() -> None:
    assert DataFormat.parse("QNN_TENSOR_DATA_FORMAT_FLAT_BUFFER") is DataFormat.DENSE
    assert DataFormat.DENSE.qnn_name == "QNN_TENSOR_DATA_FORMAT_FLAT_BUFFER"


def test_it_survives_c_structures() -> None:
    spec = TensorSpec("k", (1, 1, 64, 256), DType.UFIXED_POINT_8, kind=TensorKind.APP_WRITE, data_format=NATIVE)
    assert spec_of(tensor_struct(spec, None, keep := [])) == spec
    assert keep
    assert str(spec).endswith("hmx_weight_layout")


def test_a_file_with_an_unknown_format_is_refused() -> None:
    record = TensorRecord("k", [1], int(DType.UFIXED_POINT_8), int(TensorKind.APP_WRITE), data_format=99)
    with pytest.raises(htp.QnnError, match="data format 99"):
        tensor_spec(record)
