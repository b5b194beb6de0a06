"""Values to C and back, and everything that is refused before the library could see it."""

from __future__ import annotations

import ctypes
import dataclasses
import logging
from typing import Any

import numpy as np
import pytest
from vendor_cases import add_case, add_recipe, add_specs, conv_case, softmax_case

from openhtp.core.dtype import DType
from openhtp.core.errors import BadBinary, DeviceLost, InvalidArgument, QnnError, TimedOut, UnsupportedFeature
from openhtp.core.opcall import OpCall
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.vendor import wire
from openhtp.vendor.declarations import DEFINED, UNDEFINED, EncodingKind, LogLevel, VoltageCorner, struct
from openhtp.vendor.forms import params_of
from openhtp.vendor.logs import LogSink
from openhtp.vendor.marshal import as_target, c_text, given_inputs, op_config, scalar_param, spec_of, tensor_struct
from openhtp.vendor.power import DcvsVote, _fill_dcvs
from openhtp.vendor.profile import ProfileEvent

U8 = DType.UFIXED_POINT_8
STATIC = TensorKind.STATIC
PER_CHANNEL = AxisScaleOffset(1, (0.5, 0.25), (0, -3))


def static(dtype: DType, quant: Any, shape: tuple[int, ...] = (3, 2)) -> TensorSpec:
    return TensorSpec("t", shape, dtype, quant, STATIC)


@pytest.mark.parametrize("quant", [None, ScaleOffset(0.5, -128), PER_CHANNEL])
def test_tensor_survives_the_way_there_and_back(quant: Any) -> None:
    spec = TensorSpec("x", (3, 2), U8, quant, TensorKind.APP_WRITE)
    tensor = tensor_struct(spec, None, keep := [])
    assert spec_of(tensor) == spec
    assert keep
    assert tensor.quant.definition == (UNDEFINED if quant is None else DEFINED)


@pytest.mark.parametrize(
    ("quant", "kind"),
    [(ScaleOffset(0.5), EncodingKind.BW_SCALE_OFFSET), (PER_CHANNEL, EncodingKind.BW_AXIS_SCALE_OFFSET)],
)
def test_four_bit_weights_are_narrow_eight_bit_ones(quant: Any, kind: EncodingKind) -> None:
    data = np.array([[-8, 7], [-1, 0], [3, -4]], np.int8)
    keep: list[Any] = []
    tensor = tensor_struct(static(DType.SFIXED_POINT_4, quant), data, keep)
    assert tensor.data_type == DType.SFIXED_POINT_8
    assert tensor.quant.encoding == kind
    assert (tensor.quant.of.bw.bitwidth, tensor.quant.of.bw_axis.bitwidth) == (4, 4)
    stored = np.ctypeslib.as_array((ctypes.c_uint8 * 6).from_address(tensor.buffer.data))
    assert stored.tolist() == [8, 7, 15, 0, 3, 12]


def test_static_data_is_copied() -> None:
    data = np.zeros((3, 2), np.uint8)
    tensor = tensor_struct(static(U8, None), data, keep := [])
    data[:] = 9
    assert ctypes.string_at(tensor.buffer.data, 6) == bytes(6)
    assert keep


@pytest.mark.parametrize(
    ("spec", "data", "said"),
    [
        (TensorSpec("t", (1,) * 9, U8), None, "rank 9"),
        (TensorSpec("t", (1, 0), U8), None, "at least 1"),
        (TensorSpec("t", (1 << 31, 4), U8), None, "less than 4 GiB"),
        (TensorSpec("", (1,), U8), None, "tensor name"),
        (TensorSpec("a\0b", (1,), U8), None, "tensor name"),
        (TensorSpec("t", (3, 2), U8, AxisScaleOffset(2, (1.0, 1.0))), None, "existing axis"),
        (TensorSpec("t", (3, 2), U8, AxisScaleOffset(0, (1.0, 1.0))), None, "existing axis"),
        (TensorSpec("t", (1,), U8, ScaleOffset(1e-60)), None, "0 or infinite in 32 bits"),
        (TensorSpec("t", (1,), U8, ScaleOffset(1e60)), None, "0 or infinite in 32 bits"),
        (TensorSpec("t", (1,), U8, ScaleOffset(1.0, 1 << 31)), None, "does not fit 32 bits"),
        (static(U8, None), None, "has no data"),
        (static(U8, None), np.zeros((3, 1), np.uint8), "of shape"),
        (static(U8, None), np.zeros(5, np.uint8), "of shape"),
        (static(U8, None), np.zeros((3, 2), np.int8), "of type int8"),
        (TensorSpec("t", (1,), U8), np.zeros(1, np.uint8), "only static tensors have data"),
        (static(DType.SFIXED_POINT_4, None), np.zeros((3, 2), np.int8), "no encoding"),
        (static(DType.SFIXED_POINT_4, ScaleOffset(1.0)), np.full((3, 2), 8, np.int8), "outside -8..7"),
    ],
)
def test_bad_tensors(spec: TensorSpec, data: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        tensor_struct(spec, data, [])


@pytest.mark.parametrize("more", [{"dynamic": (True,)}, {"sparse_elements": 2}])
def test_dynamic_and_sparse_tensors_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFeature, match="dense and of fixed shape"):
        tensor_struct(TensorSpec("t", (4,), U8, **more), None, [])


@pytest.mark.parametrize(
    "array",
    [np.zeros((3, 4), np.uint8)[:, ::2], np.zeros((2, 3), np.uint8).T, np.broadcast_to(np.uint8(0), (3, 2))],
)
def test_outputs_must_be_in_one_piece(array: Any) -> None:
    with pytest.raises(InvalidArgument, match="contiguous, writable"):
        as_target(TensorSpec("t", (3, 2), U8), array, (3, 2))


@pytest.mark.parametrize(
    ("value", "dtype", "stored"),
    [
        (3, DType.UINT_32, b"\3\0\0\0\0\0\0\0"),
        (-1, DType.INT_32, b"\xff\xff\xff\xff\0\0\0\0"),
        (1.0, DType.FLOAT_32, b"\0\0\x80\x3f\0\0\0\0"),
        (True, DType.BOOL_8, b"\1\0\0\0\0\0\0\0"),
        (np.uint32(7), DType.UINT_8, b"\7\0\0\0\0\0\0\0"),
    ],
)
def test_scalar(value: Any, dtype: DType, stored: bytes) -> None:
    param = scalar_param("p", value, dtype, "n", [])
    assert param.of.scalar.data_type == dtype
    assert bytes(param.of.scalar.raw.bytes) == stored


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (-1, DType.UINT_32),
        (1 << 40, DType.UINT_32),
        (2.5, DType.INT_32),
        ("x", DType.UINT_32),
        ([1, 2], DType.UINT_32),
    ],
)
def test_bad_scalar(value: Any, dtype: DType) -> None:
    with pytest.raises(InvalidArgument, match="parameter 'p' of 'n'") as caught:
        scalar_param("p", value, dtype, "n", [])
    assert caught.value.name == "QNN_GRAPH_ERROR_INVALID_OP_CONFIG"


@pytest.mark.parametrize("field", ["name", "op", "package"])
def test_nodes_need_their_names(field: str) -> None:
    call = dataclasses.replace(add_case().call, **{field: ""})
    with pytest.raises(InvalidArgument, match="at least one character"):
        op_config(call, [], [], [], [])


def test_optional_inputs_left_out_at_the_end_are_absent() -> None:
    a, b, o = add_specs()
    assert given_inputs(OpCall("X", "x", (a, None, b, None, None), (o,))) == (a, None, b)


def test_text_lives_as_long_as_its_keeper() -> None:
    keep: list[Any] = []
    assert ctypes.string_at(c_text("grün", "name", keep)).decode() == "grün"


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


class TestPower:
    def test_only_named_parts_are_voted_for(self) -> None:
        body = struct("DcvsV3")()
        corners = (VoltageCorner.SVS, VoltageCorner.NOM, VoltageCorner.TURBO)
        _fill_dcvs(body, DcvsVote(sleep_latency_us=40, bus=corners), 5)
        assert (body.context_id, body.set_sleep_latency, body.sleep_latency) == (5, 1, 40)
        assert (body.set_bus, body.bus_min, body.bus_target, body.bus_max) == (1, 64, 96, 128)
        assert (body.set_core, body.set_dcvs_enable, body.set_sleep_disable) == (0, 0, 0)

    def test_corners_must_rise(self) -> None:
        corners = (VoltageCorner.TURBO, VoltageCorner.NOM, VoltageCorner.TURBO)
        with pytest.raises(InvalidArgument, match="lowest, target, highest"):
            _fill_dcvs(struct("DcvsV3")(), DcvsVote(core=corners), 1)


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
