"""``openhtp quantize``: from a float file and a folder of samples to a QDQ file and a report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from typer.testing import CliRunner

import openhtp as htp
from openhtp import zoo
from openhtp.cli.main import app
from openhtp.frontend.quantize import quantize_model
from openhtp.session.accuracy import closeness, compare_outputs, first_diverging, trace_nodes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = zoo.small_cnn(32)
    (tmp_path / "net.onnx").write_bytes(model)
    (tmp_path / "samples").mkdir()
    for index, feeds in enumerate(zoo.random_feeds(model, 3)):
        np.savez(tmp_path / f"samples/{index}.npz", **feeds)
    return tmp_path


def _quantize(folder: Path, *more: str) -> object:
    return CliRunner().invoke(
        app, ["quantize", str(folder / "net.onnx"), "--calibration", str(folder / "samples"), *more]
    )


def test_report_compares_float_cpu_and_htp(folder: Path) -> None:
    done = _quantize(folder, "--activation", "u16", "--weight", "u8", "--json", str(folder / "r.json"))
    assert done.exit_code == 0, done.output
    for word in ("SQNR", "cosine", "quantized, CPU", "quantized, HTP"):
        assert word in done.output
    report = json.loads((folder / "r.json").read_text())
    (output,) = report["outputs"]
    assert output["htp"]["sqnr_db"] > output["cpu"]["sqnr_db"] - 1
    assert 0.99 < output["htp"]["cosine"] <= 1
    assert b"UINT16" not in (folder / "net.qdq.onnx").read_bytes()
    session = htp.InferenceSession(folder / "net.qdq.onnx", transport="inprocess")
    assert session.run(None, zoo.random_feeds(zoo.small_cnn(32))[0])[0].shape == (1, 10)


def test_trace_names_the_first_diverging_op(folder: Path) -> None:
    """One convolution is made impossible to quantize well: one of its filters is a thousand times the others."""
    model = onnx.load(folder / "net.onnx")
    convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
    bad = convolutions[2]
    (weight,) = [tensor for tensor in model.graph.initializer if tensor.name == bad.input[1]]
    numbers = onnx.numpy_helper.to_array(weight).copy()
    numbers[0] *= 1000
    weight.CopyFrom(onnx.numpy_helper.from_array(numbers, weight.name))
    onnx.save(model, folder / "net.onnx")
    # Its large channel drowns the others in every sum, so the loss shows in a per-tensor range only.
    done = _quantize(
        folder, "--activation", "u8", "--trace-accuracy", "--threshold", "30", "--json", str(folder / "r.json")
    )
    assert done.exit_code == 0, done.output
    assert "first diverging op" in done.output
    report = json.loads((folder / "r.json").read_text())
    names = [node["node"] for node in report["nodes"]]
    assert report["first_diverging"]["node"] in names
    assert len(names) >= 8
    fine = _quantize(folder, "--activation", "u16", "--trace-accuracy", "--threshold", "-20")
    assert "no op diverges" in fine.output


def test_first_diverging_is_the_first_below_the_threshold() -> None:
    model = zoo.tiny_mlp(16)
    samples = zoo.random_feeds(model, 2)
    quantized = quantize_model(model, samples)
    nodes = trace_nodes(quantized.prepared, quantized.model, samples)
    assert [node.op_type for node in nodes][-1] == "Gemm"
    lowest = min(nodes, key=lambda node: node.htp.sqnr_db)
    assert first_diverging(nodes, lowest.htp.sqnr_db + 1e-6).htp.sqnr_db <= lowest.htp.sqnr_db + 1e-6
    assert first_diverging(nodes, 0.0) is None


def test_losses_are_counted_across_values_that_are_not_stored(folder: Path) -> None:
    """A Relu's own input is not in the quantized model; what its Conv lost must still show."""
    model = (folder / "net.onnx").read_bytes()
    samples = zoo.random_feeds(model, 2)
    quantized = quantize_model(model, samples)
    nodes = [
        node for node in trace_nodes(quantized.prepared, quantized.model, samples) if node.op_type == "Conv+Relu"
    ]
    assert len(nodes) >= 2
    assert max(node.lost_db for node in nodes[1:]) > 0.1


def test_open_dimension_is_fixed_on_the_way(folder: Path) -> None:
    model = ModelProto.FromString((folder / "net.onnx").read_bytes())
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    refused = _quantize(folder)
    assert refused.exit_code == 2
    done = _quantize(folder, "--dim", "batch=1")
    assert done.exit_code == 0, done.output
    assert _quantize(folder, "--dim", "batch").exit_code == 2


@pytest.mark.parametrize("more", [["--activation", "u9"], ["--weight", "f32"], ["--method", "guess"]])
def test_unknown_choices_are_refused(folder: Path, more: list[str]) -> None:
    assert _quantize(folder, *more).exit_code == 2


def test_samples_that_do_not_fit_are_named(folder: Path) -> None:
    np.savez(folder / "samples/9.npz", input=np.zeros((1, 3, 8, 8), np.float32))
    done = _quantize(folder)
    assert done.exit_code == 2
    np.savez(folder / "samples/9.npz", other=np.zeros(1))
    assert _quantize(folder).exit_code == 2
    (folder / "samples/9.npz").write_bytes(b"no")
    assert _quantize(folder).exit_code == 2
    (folder / "samples/9.npz").unlink()
    np.save(folder / "samples/9.npy", zoo.random_feeds(zoo.small_cnn(32))[0]["input"][0])
    assert _quantize(folder).exit_code == 0


def test_closeness_of_equal_and_opposite_arrays() -> None:
    one = np.array([1.0, -2.0, 3.0])
    same, other = closeness(one, one), closeness(one, -one)
    assert same.sqnr_db == float("inf")
    assert same.cosine == pytest.approx(1)
    assert (other.cosine, other.max_error) == (pytest.approx(-1), 6.0)


def test_outputs_are_compared_over_all_samples() -> None:
    model = zoo.tiny_mlp(16)
    samples = zoo.random_feeds(model, 4)
    quantized = quantize_model(model, samples, activation="u16", weight="s8", per_channel=True)
    (report,) = compare_outputs(model, quantized.model, samples)
    assert report.htp.sqnr_db > report.cpu.sqnr_db - 0.5
