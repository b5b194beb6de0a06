"""InferenceSession has ONNX Runtime's methods, gives its results, and queues runs."""

from __future__ import annotations

import asyncio
import csv
import gc
import json
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.waiting import PATIENCE_S

import openhtp as htp
from openhtp import zoo
from openhtp.core import tidying
from openhtp.engine.onnxruntime import onnxruntime as ort
from openhtp.options import PROVIDER
from openhtp.report.profile_log import read_log
from openhtp.runtime.instruments.instrument import hook_points

QNN = "QNNExecutionProvider"


@pytest.fixture(scope="module")
def model() -> bytes:
    return zoo.quantized(zoo.small_cnn(32))


@pytest.fixture(scope="module")
def feeds(model: bytes) -> dict[str, np.ndarray]:
    return zoo.random_feeds(model)[0]


@pytest.fixture(scope="module")
def session(model: bytes) -> Iterator[htp.InferenceSession]:
    with htp.InferenceSession(model, soc="SM8650") as session:
        yield session


def _reference(model: bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)


def _options(**entries: str) -> ort.SessionOptions:
    options = ort.SessionOptions()
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    return options


def test_run_gives_what_onnxruntime_gives(session, model, feeds) -> None:
    (ours,), (theirs,) = session.run(None, feeds), _reference(model, feeds)
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < 0.1 * np.abs(theirs).max()
    assert np.array_equal(session.run(["output"], feeds)[0], ours)


def test_inputs_and_outputs_are_described_as_onnxruntime_does(session, model) -> None:
    theirs = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    for ours, wanted in (
        (session.get_inputs(), theirs.get_inputs()),
        (session.get_outputs(), theirs.get_outputs()),
    ):
        assert [(a.name, a.type, a.shape) for a in ours] == [(b.name, b.type, b.shape) for b in wanted]
    assert session.get_modelmeta().graph_name == theirs.get_modelmeta().graph_name
    assert session.get_providers()[0] == QNN
    assert session.get_overridable_initializers() == []


@pytest.mark.parametrize(
    ("names", "change", "message"),
    [
        (["nope"], {}, "no output is called 'nope'"),
        (None, {"input": None}, "missing"),
        (None, {"input": np.zeros((1, 3, 8, 8), np.float32)}, "expected float32"),
        (None, {"input": np.zeros((1, 3, 32, 32), np.float64)}, "is float64"),
        (None, {"more": np.zeros(1, np.float32)}, "no input is called 'more'"),
    ],
)
def test_wrong_calls_are_refused_in_words(session, feeds, names, change, message) -> None:
    given = {name: array for name, array in {**feeds, **change}.items() if array is not None}
    with pytest.raises(htp.InvalidArgument, match=message):
        session.run(names, given)
    session.run(None, feeds)


def test_callback_gets_results_and_user_data(session, feeds) -> None:
    over, seen = threading.Event(), []

    def callback(results, user_data, error) -> None:
        seen.append((results, user_data, error))
        over.set()

    pending = session.run_async(None, feeds, callback, "mine")
    assert over.wait(PATIENCE_S)
    results, user_data, error = seen[0]
    assert (user_data, error, len(seen)) == ("mine", "", 1)
    assert np.array_equal(results[0], pending.result()[0])
    assert pending.done()
    assert pending.exception() is None


def test_runs_can_be_awaited_while_others_run(session, feeds) -> None:
    async def main() -> list[list[np.ndarray]]:
        return await asyncio.gather(*(_one(session, feeds) for _ in range(5)))

    async def _one(session, feeds):
        return await session.run_async(["output"], feeds)

    queued = session.run_async(None, feeds)
    between = session.run(None, feeds)
    for results in [*asyncio.run(main()), queued.result()]:
        assert np.array_equal(results[0], between[0])


def test_cancelled_run_reports_to_its_callback(session, feeds) -> None:
    over, seen = threading.Event(), []

    def callback(results, user_data, error) -> None:
        seen.append((results, error))
        over.set()

    runs = [session.run_async(None, feeds) for _ in range(8)]
    last = session.run_async(None, feeds, callback)
    last.cancel()
    assert over.wait(PATIENCE_S)
    for run in runs:
        run.result()
    results, error = seen[0]
    # Either it came in time, or the run was over already.
    assert (results == [] and "ABORTED" in error) if last.cancelled() else len(results) == 1


def test_defaults_are_those_of_the_provider(session) -> None:
    options = session.get_provider_options()[QNN]
    assert options == dict(PROVIDER.defaults())
    assert options["qnn_context_priority"] == "normal"
    assert options["htp_performance_mode"] == "default"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"htp_performance_mode": "fast"}, "burst"),
        ({"vtcm_mb": "-1"}, "whole number"),
        ({"qnn_context_priority": "urgent"}, "normal_high"),
        ({"soc_model": "99999"}, "unknown"),
        ({"htp_arch": "12"}, "htp_arch 12"),
        ({"device_id": "1"}, "one device"),
        ({"backend_path": "libQnnGpu.so"}, "libQnnHtp.so"),
        ({"backend_path": "/nowhere/libQnnHtp.so"}, "not a file"),
        ({"profiling_level": "all"}, "detailed"),
    ],
)
def test_bad_option_values_are_refused(model, options, message) -> None:
    with pytest.raises(htp.InvalidArgument, match=message):
        htp.InferenceSession(model, providers=[QNN], provider_options=[options])


def test_importer_and_networks_are_reached_from_the_package() -> None:
    assert htp.onnx.load(htp.zoo.tiny_mlp()).outputs[0].shape == (1, 10)
    with pytest.raises(AttributeError, match="nothing"):
        htp.nothing


def test_unknown_option_is_reported_and_left_alone(model, caplog) -> None:
    with caplog.at_level(logging.WARNING), htp.InferenceSession(model, providers=[(QNN, {"new_knob": "1"})]):
        assert "new_knob" in caplog.text


def test_options_reach_the_device(model, feeds) -> None:
    options = {"soc_model": "57", "vtcm_mb": "4", "qnn_context_priority": "high", "backend_path": "QnnHtp.dll"}
    with htp.InferenceSession(model, providers=[QNN], provider_options=[options]) as session:
        loaded = session.executable
        assert loaded.device.soc == "SM8650"
        assert loaded.context.priority is htp.Priority.HIGH
        assert loaded.graph.options.vtcm_bytes == 4 << 20
        session.run(None, feeds)


def test_arch_chooses_a_chip_of_that_architecture(model) -> None:
    from openhtp.hw.catalog import find_soc

    with htp.InferenceSession(model, providers=[QNN], provider_options=[{"htp_arch": "79"}]) as session:
        assert find_soc(session.executable.device.soc).arch == 79


def _profiled(path: Path) -> dict[str, list]:
    options = {"profiling_level": "basic", "profiling_file_path": str(path)}
    return {"providers": [QNN], "provider_options": [options]}


def test_sessions_record_their_own_runs_only_until_they_end(model, feeds, tmp_path) -> None:
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    with (
        htp.InferenceSession(model, **_profiled(files[0])) as first,
        htp.InferenceSession(model, **_profiled(files[1])) as second,
        htp.InferenceSession(model, providers=[QNN]) as third,
    ):
        for session, runs in ((first, 1), (second, 2), (third, 1)):
            for _ in range(runs):
                session.run(None, feeds)
                session.run_async(None, feeds).result()
        first.end_profiling()
        first.run(None, feeds)
        assert third.run_async(None, feeds).profile is None
    counts = [file.read_text().count("QNN (execute) time") for file in files]
    assert counts == [2, 4]
    for point in (*hook_points["session_run"], *hook_points["session_queue"]):
        assert vars(point.owner)[point.method] is point.defined  # runs cost what they cost without a recorder


def test_a_session_that_nobody_closes_leaves_its_profile(model, feeds, tmp_path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "prof")
    session = htp.InferenceSession(model, options, providers=[QNN])
    session.run(None, feeds)
    del session
    gc.collect()
    tidying.flush()
    (path,) = tmp_path.iterdir()
    assert "model_run" in [event["name"] for event in json.loads(path.read_text())]


def test_profile_is_written_as_csv(model, feeds, tmp_path) -> None:
    path = tmp_path / "profile.csv"
    options = {"profiling_level": "detailed", "profiling_file_path": str(path)}
    with htp.InferenceSession(model, providers=[QNN], provider_options=[options]) as session:
        session.run(None, feeds)
        noted = threading.Event()
        pending = session.run_async(None, feeds, lambda *_: noted.set())
        pending.result()
        assert noted.wait(PATIENCE_S)  # what a run cost is written down before its callback is called
        assert pending.profile.event(400).value > 0
        assert session.end_profiling() == str(path)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert {"Message", "Time", "Unit of Measurement", "Event Level"} <= set(rows[0])
    assert sum(row["Event Identifier"] == "QNN (execute) time" for row in rows) >= 1
    assert any(row["Event Level"] == "SUB-EVENT" for row in rows)
    assert {row["Message"] for row in rows} == {
        "BACKEND",
        "EXECUTE",
        "NODE",
        "EXECUTE QUEUE WAIT",
        "EXECUTE DEVICE",
    }
    log = read_log(tmp_path / "profile_qnn.log")  # for the viewer
    assert (log.app, len(log.messages)) == ("OnnxRuntime", 2)


def test_saver_writes_the_calls(model, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"qnn_saver_path": "libQnnSaver.so"}
    feeds = zoo.random_feeds(model)[0]
    with htp.InferenceSession(model, providers=[QNN], provider_options=[options]) as session:
        session.run(None, feeds)
    with htp.InferenceSession(model, providers=[QNN]) as session:
        session.run(None, feeds)
    lines = (tmp_path / "saver_output/saver_output.jsonl").read_text().splitlines()
    calls = [json.loads(line)["call"] for line in lines]
    assert {"graphCreate", "graphAddNode", "tensorCreateGraphTensor", "graphFinalize", "free"} <= set(calls)
    assert calls.count("graphExecuteAsync") == 1, "of the session that asked for it"
    assert (tmp_path / "saver_output/params.bin").stat().st_size > 1000


def test_float_model_is_told_to_be_half_precision(caplog) -> None:
    model = zoo.tiny_mlp()
    feeds = zoo.random_feeds(model)[0]
    with caplog.at_level(logging.WARNING), htp.InferenceSession(model) as session:
        assert "half precision" in caplog.text
        assert np.allclose(session.run(None, feeds)[0], _reference(model, feeds)[0], atol=0.02)
    caplog.clear()
    options = [{"enable_htp_fp16_precision": "1"}]
    with htp.InferenceSession(model, providers=[QNN], provider_options=options):
        assert not caplog.text


def test_cpu_backend_computes_in_full_precision() -> None:
    model = zoo.tiny_mlp()
    feeds = zoo.random_feeds(model)[0]
    options = [{"backend_path": "libQnnCpu.so"}]
    with htp.InferenceSession(model, providers=[QNN], provider_options=options) as session:
        assert np.allclose(session.run(None, feeds)[0], _reference(model, feeds)[0], atol=1e-5)


def _unsupported() -> bytes:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    graph = helper.make_graph([helper.make_node("Det", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def test_unsupported_model_falls_back_unless_told_not_to(caplog) -> None:
    with pytest.raises(htp.UnsupportedOp, match="Det"):
        htp.InferenceSession(_unsupported(), _options(session__disable_cpu_ep_fallback="1"))
    with caplog.at_level(logging.WARNING):
        session = htp.InferenceSession(_unsupported())
    assert "Det" in caplog.text
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.run(None, {"x": np.eye(2, dtype=np.float32)})[0] == 1.0
    queued = session.run_async(None, {"x": np.eye(2, dtype=np.float32)})
    assert queued.result()[0] == 1.0


def test_open_dimension_is_fixed_by_name() -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value], [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    strict = _options(session__disable_cpu_ep_fallback="1")
    with pytest.raises(htp.UnsupportedFeature, match="batch"):
        htp.InferenceSession(model, strict)
    with htp.InferenceSession(model, strict, dims={"batch": 3}, transport="inprocess") as session:
        assert session.get_outputs()[0].shape == [3, 4]
        assert session.run(None, {"x": -np.ones((3, 4), np.float32)})[0].sum() == 0


@pytest.mark.parametrize("embed", ["1", "0"])
def test_context_is_saved_and_restored(model, feeds, tmp_path: Path, embed: str) -> None:
    source = tmp_path / "net.onnx"
    source.write_bytes(model)
    with htp.InferenceSession(source, _options(ep__context_enable="1", ep__context_embed_mode=embed)) as first:
        wanted = first.run(None, feeds)
    path = tmp_path / "net_ctx.onnx"
    assert path.exists()
    assert len(list(tmp_path.glob("net_ctx.onnx_QNNExecutionProvider_QNN_*_1_0.bin"))) == (embed == "0")
    with htp.InferenceSession(str(path)) as second:
        assert second.executable.graph.was_prepared, "so it is there sooner than the first was"
        assert np.array_equal(second.run(None, feeds)[0], wanted[0])
        assert second.get_inputs()[0].shape == [1, 3, 32, 32]
    with pytest.raises(htp.InvalidArgument, match="exists already"):
        htp.InferenceSession(source, _options(ep__context_enable="1"))
    named = tmp_path / "other.onnx"
    htp.InferenceSession(model, _options(ep__context_enable="1", ep__context_file_path=str(named))).close()
    assert named.exists()


def test_broken_context_is_refused(model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.onnx"
    htp.InferenceSession(
        model, _options(ep__context_enable="1", ep__context_file_path=str(path), ep__context_embed_mode="0")
    ).close()
    (binary,) = tmp_path.glob("*.bin")
    binary.write_bytes(binary.read_bytes()[:-100])
    with pytest.raises(htp.BadBinary):
        htp.InferenceSession(path)
    other = tmp_path / "elsewhere"
    other.mkdir()
    binary.rename(other / binary.name)
    monkeypatch.chdir(other)
    with pytest.raises(htp.BadModel, match="not a file"):
        htp.InferenceSession(path)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"ep_cache_context": b"\xff\xfe", "embed_mode": 0}, "not a file|no file name"),
        ({"ep_cache_context": b"junk", "embed_mode": 1}, "."),
        ({"embed_mode": 1}, "no context"),
        ({"ep_cache_context": b"x", "source": "OtherNpu"}, "OtherNpu"),
    ],
)
def test_hostile_context_models_are_refused(tmp_path: Path, attrs: dict[str, object], message: str) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **attrs)
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "c.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())
    with pytest.raises(htp.FormatError, match=message):
        htp.InferenceSession(path, transport="inprocess")


def test_closed_session_refuses_and_the_device_ends(model, feeds) -> None:
    from openhtp.session import hosts

    session = htp.InferenceSession(model, soc="SM8550")
    kind = session.executable.stay.kind
    assert kind in hosts.devices
    session.close()
    assert kind not in hosts.devices
    with pytest.raises(htp.WrongState, match="closed"):
        session.run(None, feeds)


def test_sessions_on_one_chip_share_its_device(session, model, feeds) -> None:
    with htp.InferenceSession(model) as other:
        assert other.executable.device is session.executable.device
        assert np.array_equal(other.run(None, feeds)[0], session.run(None, feeds)[0])


def _run_often(session: htp.InferenceSession, feeds: dict[str, np.ndarray]) -> None:
    for _ in range(200):
        session.run(None, feeds)


def test_subsystem_restart_is_reported_and_a_new_session_works(model, feeds) -> None:
    """As the provider's document asks of applications: create the session again."""
    with htp.InferenceSession(model, soc="SM8475") as first:
        wanted = first.run(None, feeds)
        os.kill(first.executable.device.pid, signal.SIGKILL)
        with pytest.raises(htp.DeviceLost):
            _run_often(first, feeds)
        with htp.InferenceSession(model, soc="SM8475") as second:
            assert np.array_equal(second.run(None, feeds)[0], wanted[0])


def test_a_model_without_inputs_runs() -> None:
    """As its constants are frozen, say. The API wants no inputs at all then, not an empty mapping."""
    value = numpy_helper.from_array(np.arange(4, dtype=np.float32), "c")
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph([helper.make_node("Neg", ["c"], ["y"])], "g", [], [output], [value])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = htp.InferenceSession(model.SerializeToString())
    np.testing.assert_array_equal(session.run(None, {})[0], -np.arange(4))
    np.testing.assert_array_equal(session.run_async(None, {}).result(PATIENCE_S)[0], -np.arange(4))
