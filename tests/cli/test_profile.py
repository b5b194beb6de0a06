"""From a model to a report with one command, and to the same with the viewer by itself."""

from __future__ import annotations

import gzip
import json

import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from openhtp.cli.main import app
from openhtp.records.profile import Method
from openhtp.report.profile_log import read_log
from tests.report.trace_rules import check_trace


def invoke(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiled")
    result = invoke("profile", "zoo:small_cnn", "--runs", 2, "-o", folder, "--json", folder / "told.json")
    assert result.exit_code == 0, result.output
    return folder, result


def test_profile_writes_everything(profiled):
    folder, result = profiled
    told = json.loads((folder / "told.json").read_text())
    assert len(told["files"]) == 7
    assert "nodes that have the most say" in result.output
    log = read_log(folder / "profile.log")
    assert [message.method for message in log.messages] == [
        Method.FINALIZE,
        Method.EXECUTE,
        Method.EXECUTE,
        Method.DEINIT,
    ]
    assert (log.soc, log.level) == ("SM8650", "optrace")
    events = check_trace(json.loads((folder / "chrometrace.json").read_text()))
    names = {name for event in events["X"] for name in event["args"].get("Framework Ops", ())}
    assert "conv_0_node" in names  # as in the model


def test_the_viewer_makes_the_same_of_the_log(profiled, tmp_path):
    folder, _ = profiled
    result = invoke(
        "profile-viewer",
        "--input_log", folder / "profile.log",
        "--reader", "/sdk/lib/libQnnHtpOptraceProfilingReader.so",
        "--schematic", folder / "small_cnn_schematic.bin",
        "--output", tmp_path / "again.json",
        "--gzip",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    small = (tmp_path / "again.json.gz").read_bytes()
    packed = gzip.decompress(small)
    assert len(packed) / 40 < len(small) < len(packed) / 10
    assert json.loads(packed) == json.loads((folder / "chrometrace.json").read_text())


def test_a_log_as_text_and_json(profiled):
    folder, _ = profiled
    text = invoke("profile-viewer", "--input_log", folder / "profile.log")
    assert text.exit_code == 0, text.output
    for words in ("Finalize Stats:", "De-Init Stats:", "Execute Stats (Average):", "conv_0_node:OpId_5 (cycles):"):
        assert words in text.output
    told = invoke("profile-viewer", "--input_log", folder / "profile.log", "--json", "-")
    assert json.loads(told.stdout)["reader"] == "default"


def test_linting_and_a_comparison(profiled, tmp_path):
    folder, _ = profiled
    result = invoke("profile", "zoo:small_cnn", "--level", "linting", "--runs", 1, "-o", tmp_path)
    assert result.exit_code == 0, result.output
    assert "Wait (Scheduler) time:" in result.output
    check_trace(json.loads((tmp_path / "chrometrace.json").read_text()))
    other = invoke("profile", "zoo:small_cnn", "--soc", "SM8550", "--runs", 1, "-o", tmp_path / "old")
    assert other.exit_code == 0, other.output
    logs = (tmp_path / "old" / "profile.log", folder / "profile.log")
    assert invoke("profile-diff", *logs).exit_code == 0  # the newer chip is faster
    assert invoke("profile-diff", *reversed(logs)).exit_code == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("profile", "zoo:small_cnn", "--level", "all"), "expected basic, detailed, linting, optrace"),
        (("profile", "zoo:small_cnn", "--soc", "SM8350"), "quantize it (openhtp quantize)"),
        (("profile-viewer", "--input_log", "nothing.log"), "cannot read 'nothing.log'"),
        (("profile-viewer", "--input_log", "x", "--zoom_start", "a"), "go together"),
        (("profile-viewer", "--input_log", "x", "--reader", "y"), "reader 'y' is unknown"),
        (("profile-viewer", "--input_log", ","), "names no file"),
    ],
)
def test_refusals(args, words):
    result = invoke(*args)
    assert result.exit_code == 2
    assert words in result.output.replace("\n", " ")


def test_a_number_as_an_input(tmp_path):
    """A scalar of the file has one axis on the HTP."""
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8]),
        helper.make_tensor_value_info("gain", TensorProto.FLOAT, []),
    ]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "gain"], ["y"])],
        "g",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    result = invoke("profile", tmp_path / "m.onnx", "--runs", 1, "-o", tmp_path / "p")
    assert result.exit_code == 0, result.output
