"""What goes to the child process and back, and what is refused before the library could see it."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np
import pytest
from vendor_cases import add_recipe, conv_case, softmax_case

from openhtp.core.dtype import DType
from openhtp.core.enumerations import LogLevel
from openhtp.core.errors import BadBinary, DeviceLost, InvalidArgument, QnnError, TimedOut, UnsupportedFeature
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.vendor import wire
from openhtp.vendor.forms import dense_tensor, params_of
from openhtp.vendor.logs import LogSink
from openhtp.vendor.profile import ProfileEvent

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


class TestRecipe:
    def test_tensors_once_in_order(self) -> None:
        recipe = add_recipe()
        assert [spec.name for spec in recipe.tensors()] == ["a", "b", "o"]

    def test_two_tensors_of_one_name(self) -> None:
        (call, params), *_ = add_recipe().nodes
        other = dataclasses.replace(call, inputs=(dataclasses.replace(call.inputs[0], shape=(1,)), call.inputs[1]))
        recipe = dataclasses.replace(add_recipe(), nodes=((call, params), (other, params)))
        with pytest.raises(InvalidArgument, match="elsewhere described"):
            recipe.tensors()

    def test_static_data_must_be_complete(self) -> None:
        case = conv_case()
        recipe = dataclasses.replace(add_recipe(), nodes=((case.call, case.params),), data={"w": case.inputs["w"]})
        with pytest.raises(InvalidArgument, match=r"static tensors \['b'\] without data"):
            recipe.tensors()
        with pytest.raises(InvalidArgument, match=r"static tensors \['z'\] unknown"):
            dataclasses.replace(add_recipe(), data={"z": case.inputs["w"]}).tensors()


class TestWire:
    @pytest.mark.parametrize("quant", [None, ScaleOffset(0.5, -3), PER_CHANNEL])
    def test_specs(self, quant: Any) -> None:
        spec = TensorSpec("x", (3, 2), U8, quant, TensorKind.APP_READ)
        assert wire.wire_to_spec(wire.spec_to_wire(spec)) == spec

    def test_answers(self) -> None:
        event = ProfileEvent(type=1, name="a", unit="us", value=3, identifier="b")
        event = dataclasses.replace(event, children=(event,))
        back = wire.decode(wire.encode(wire.Answer(events=[wire.event_to_wire(event)], id=7)))
        assert (back.id, back.error, back.flag) == (7, None, None)
        assert wire.wire_to_event(back.events[0]) == event

    @pytest.mark.parametrize("kind", [BadBinary, DeviceLost, TimedOut, QnnError])
    def test_errors(self, kind: type[QnnError]) -> None:
        error = kind("what")
        error.context.append("where")
        back = wire.wire_to_error(wire.error_to_wire(error))
        assert type(back) is kind
        assert str(back) == str(error)

    def test_only_our_errors_come_back(self) -> None:
        assert type(wire.wire_to_error(wire.WireError("contextlib", "m", "N", 1, []))) is QnnError

    @pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90", b"\x81\xa2id\xa1x"])
    def test_nonsense_is_a_lost_device(self, data: bytes) -> None:
        with pytest.raises(DeviceLost, match="nonsense"):
            wire.decode(data)


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
