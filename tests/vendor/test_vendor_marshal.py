"""What is refused before the library could see it, and what becomes of its log."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np
import pytest
from vendor_cases import conv_case, softmax_case

from openhtp.core.dtype import DType
from openhtp.core.enumerations import LogLevel
from openhtp.core.errors import UnsupportedFeature
from openhtp.core.quant import AxisScaleOffset
from openhtp.core.tensor import TensorSpec
from openhtp.vendor.forms import dense_tensor, params_of
from openhtp.vendor.library import LogSink

U8 = DType.UFIXED_POINT_8
PER_CHANNEL = AxisScaleOffset(1, (0.5, 0.25), (0, -3))


@pytest.mark.parametrize("more", [{"dynamic": (True,)}, {"sparse_elements": 2}])
def test_dynamic_and_sparse_tensors_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFeature, match="dense and of fixed shape"):
        dense_tensor(TensorSpec("t", (4,), U8, **more), None, [])


def test_params_take_form_and_type_from_our_definition() -> None:
    case = conv_case()
    plain = {name: value for name, (value, _, _) in case.params.items() if name != "group"}
    params = params_of(dataclasses.replace(case.call, params=plain))
    assert set(params) == {"stride", "pad_amount"}
    assert [form[1:] for form in params.values()] == [(DType.UINT_32, "tensor")] * 2
    assert np.array_equal(params["stride"][0], [1, 1])
    axis = params_of(dataclasses.replace(softmax_case().call, params={"axis": 3}))
    assert axis == {"axis": (3, DType.UINT_32, "scalar")}


class TestLog:
    @pytest.fixture
    def sink(self, monkeypatch: pytest.MonkeyPatch) -> LogSink:
        sink = LogSink()
        monkeypatch.setattr(sink, "_format", None)  # a test cannot make a va_list
        return sink

    def test_errors_are_remembered_once_and_cleaned(self, sink: LogSink) -> None:
        for line in (b"<E> graph.cc:12::ERROR:no such op\n", b"<E> no such op", b"<E> next"):
            sink.callback(line, LogLevel.ERROR, 0, None)
        sink.callback(b"<W> noise", LogLevel.WARN, 0, None)
        assert sink.take_errors() == ["no such op", "next"]
        assert sink.take_errors() == []

    def test_lines_reach_python_logging(self, sink: LogSink, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG, "openhtp.vendor.qnn"):
            sink.callback(b"<W> hot", LogLevel.WARN, 0, None)
            sink.callback(b"odd level", 77, 0, None)
            sink.callback(None, LogLevel.INFO, 0, None)
        assert [record.getMessage() for record in caplog.records] == ["hot", "odd level", ""]
