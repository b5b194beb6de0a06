"""What the page of ONNX Runtime's QNN provider says, where no other test shows it."""

from __future__ import annotations

import csv
import importlib
import logging
import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.waiting import PATIENCE_S

import openhtp as htp
from openhtp import zoo
from openhtp.engine.onnxruntime import onnxruntime as ort

quantization = importlib.import_module("onnxruntime.quantization")
qnn = importlib.import_module("onnxruntime.quantization.execution_providers.qnn")
QNN, CPU = "QNNExecutionProvider", "CPUExecutionProvider"


@pytest.fixture(scope="module")
def model() -> bytes:
    return zoo.quantized(zoo.small_cnn(32))


def session_with(model: bytes, **options: str) -> htp.InferenceSession:
    return htp.InferenceSession(model, providers=[QNN], provider_options=[options])


def one_node(
    op: str, shape: tuple[int, ...], constants: dict[str, np.ndarray], dtype: int = TensorProto.FLOAT, **attrs: Any
) -> bytes:
    """A model of one operator: an input ``x``, constants, an output ``y``."""
    x, y = (helper.make_tensor_value_info(name, dtype, list(shape)) for name in "xy")
    node = helper.make_node(op, ["x", *constants], ["y"], **attrs)
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def on_cpu(model: bytes, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return ort.InferenceSession(model, providers=[CPU]).run(None, feeds)[0]


@pytest.mark.parametrize("level", ["off", "basic", "detailed"])
def test_a_level_says_how_much_is_profiled(model: bytes, tmp_path: Path, level: str) -> None:
    path = tmp_path / "profile.csv"
    with session_with(model, profiling_level=level, profiling_file_path=str(path)) as session:
        session.run(None, zoo.random_feeds(model)[0])
    assert path.exists() is (level != "off")
    rows = list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []
    messages = {row["Message"] for row in rows}
    assert ("EXECUTE" in messages) is (level != "off")
    assert ("NODE" in messages) is (level == "detailed")


MODES = "burst balanced high_performance high_power_saver low_balanced low_power_saver power_saver"


@pytest.mark.parametrize("mode", ["default", *MODES.split(), "sustained_high_performance"])
def test_a_performance_mode_is_the_vote_of_that_name(model: bytes, mode: str) -> None:
    with session_with(model, htp_performance_mode=mode) as session:
        votes = session.executable.device.info()["power"]["configs"]
        assert [vote["perf_profile"] for vote in votes] == ([] if mode == "default" else [mode])


@pytest.mark.parametrize("level", ["low", "normal", "normal_high", "high"])
def test_a_priority_is_that_of_the_context_and_its_graph(model: bytes, level: str) -> None:
    with session_with(model, qnn_context_priority=level) as session:
        assert session.executable.context.priority is htp.Priority[level.upper()]
        assert session.executable.graph.priority is htp.Priority[level.upper()]


@pytest.mark.parametrize(("mode", "level"), [("0", 2), ("1", 1), ("2", 2), ("3", 3)])
def test_a_finalization_mode_is_the_graph_s_optimization_level(model: bytes, mode: str, level: int) -> None:
    with session_with(model, htp_graph_finalization_optimization_mode=mode) as session:
        assert session.executable.graph.options.optimization_level == level


@pytest.mark.parametrize(
    ("op", "constants"),
    [
        ("BatchNormalization", [np.full(4, value, np.float16) for value in (1.5, 0.5, 0.25, 2.0)]),
        ("Clip", [np.float16(-0.5), np.float16(0.75)]),
        ("PRelu", [np.full((4, 1, 1), 0.25, np.float16)]),
    ],
)
def test_models_in_half_precision_are_taken(op: str, constants: list[Any]) -> None:
    named = {f"c{place}": np.asarray(each) for place, each in enumerate(constants)}
    model = one_node(op, (1, 4, 3, 3), named, TensorProto.FLOAT16)
    feeds = {"x": np.random.default_rng(1).normal(size=(1, 4, 3, 3)).astype(np.float16)}
    with session_with(model, enable_htp_fp16_precision="1") as session:
        assert session.get_providers()[0] == QNN
        got = session.run(None, feeds)[0]
    assert got.dtype == np.float16
    assert np.allclose(got, on_cpu(model, feeds), atol=5e-3)


def run_until_it_fails(session: htp.InferenceSession, feeds: dict[str, np.ndarray], asynchronous: bool) -> None:
    """A loss is noticed soon, not at once."""
    for _ in range(200):
        if not asynchronous:
            session.run(None, feeds)
            continue
        pending = session.run_async(None, feeds)
        if (error := pending.exception(PATIENCE_S)) is not None:
            with pytest.raises(type(error)):
                pending.result()
            raise error


@pytest.mark.parametrize("asynchronous", [False, True])
def test_e4_a_lost_device_is_an_engine_error_of_onnxruntime(model: bytes, asynchronous: bool) -> None:
    engine_error = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state").EngineError
    feeds = zoo.random_feeds(model)[0]
    with htp.InferenceSession(model, soc="SM8450") as session:
        session.run(None, feeds)
        os.kill(session.executable.device.pid, signal.SIGKILL)
        with pytest.raises(engine_error) as caught:
            run_until_it_fails(session, feeds, asynchronous)
    assert isinstance(caught.value, htp.DeviceLost)
    assert (caught.value.name, caught.value.code) == ("QNN_COMMON_ERROR_SYSTEM_COMMUNICATION", 1007)
    twin = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(twin, engine_error)
    assert str(twin) == str(caught.value)


@pytest.mark.parametrize("shape", [(4, 1, 1), (1,), (3, 3)], ids=str)
def test_e5_prelu_of_integers_is_taken(shape: tuple[int, ...]) -> None:
    slopes = np.arange(1, 1 + np.prod(shape), dtype=np.int32).reshape(shape)
    model = one_node("PRelu", (1, 4, 3, 3), {"slopes": slopes}, TensorProto.INT32)
    feeds = {"x": np.arange(36, dtype=np.int32).reshape(1, 4, 3, 3) - 18}
    with session_with(model) as session:
        assert session.get_providers()[0] == QNN
        got = session.run(None, feeds)[0]
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, on_cpu(model, feeds))


def test_indices_of_gather_that_are_computed_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    data = numpy_helper.from_array(np.arange(6, dtype=np.float32), "data")
    x = helper.make_tensor_value_info("x", TensorProto.INT64, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Gather", ["data", "x"], ["y"])], "g", [x], [y], [data])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with (
        caplog.at_level(logging.INFO, "openhtp.frontend"),
        session_with(made.SerializeToString(), enable_htp_fp16_precision="1") as session,
    ):
        assert "(Gather): its indices are computed; the HTP takes none below 0" in caplog.text
        assert session.get_providers()[0] == QNN
        assert session.run(None, {"x": np.array([5, 0])})[0].tolist() == [5, 0]


def test_a_branch_that_depends_on_data_is_left_to_the_cpu(caplog: pytest.LogCaptureFixture) -> None:
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    branches = {
        f"{way}_branch": helper.make_graph([helper.make_node(op, ["x"], ["y"])], way, [], [y])
        for way, op in (("then", "Neg"), ("else", "Abs"))
    }
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    way = helper.make_tensor_value_info("way", TensorProto.BOOL, [])
    graph = helper.make_graph([helper.make_node("If", ["way"], ["y"], **branches)], "g", [x, way], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    with caplog.at_level(logging.WARNING), htp.InferenceSession(made) as session:
        assert session.get_providers() == [CPU]
        assert "If" in caplog.text
        feeds = {"x": np.float32([1, -2]), "way": np.array(True)}
        assert session.run(None, feeds)[0].tolist() == [-1, 2]


class Samples(quantization.CalibrationDataReader):
    """Some samples, one after the other."""

    def __init__(self, model: bytes) -> None:
        self._samples: Iterator[dict[str, np.ndarray]] = iter([zoo.random_feeds(model)[0] for _ in range(4)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._samples, None)


@pytest.mark.parametrize("activations", ["QUInt16", "QUInt8"])
def test_a_model_quantized_as_the_page_says_runs_as_a_whole(tmp_path: Path, activations: str) -> None:
    source, prepared, made = (tmp_path / name for name in ("model.onnx", "prepared.onnx", "model.qdq.onnx"))
    model = zoo.small_cnn(32)
    source.write_bytes(model)
    if qnn.qnn_preprocess_model(str(source), str(prepared)):
        source = prepared
    samples = Samples(model)
    kinds = quantization.QuantType
    config = qnn.get_qnn_qdq_config(source, samples, activation_type=kinds[activations], weight_type=kinds.QUInt8)
    quantization.quantize(str(source), str(made), config)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    feeds = zoo.random_feeds(model)[0]
    whole: dict[str, Any] = {"providers": [QNN], "provider_options": [{"backend_path": "QnnHtp.dll"}]}
    with htp.InferenceSession(str(made), options, **whole) as session:
        assert session.get_providers()[0] == QNN
        got = session.run(None, feeds)[0]
    wanted = on_cpu(onnx.load(made).SerializeToString(), feeds)
    assert np.abs(got - wanted).max() <= 0.05 * np.abs(wanted).max()


def test_a_context_model_is_there_before_any_run(model: bytes, tmp_path: Path) -> None:
    source = tmp_path / "net.onnx"
    source.write_bytes(model)
    options = ort.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    with htp.InferenceSession(source, options):
        dumped = onnx.load(tmp_path / "net_ctx.onnx")
    (node,) = dumped.graph.node
    attrs = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    assert (node.op_type, node.domain, attrs["embed_mode"]) == ("EPContext", "com.microsoft", 1)
    assert len(attrs["ep_cache_context"]) > 1000
