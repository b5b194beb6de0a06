"""``openhtp run`` as the everyday door to a model."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from openhtp import zoo
from openhtp.cli.main import app
from openhtp.engine.onnxruntime import onnxruntime


def invoke(*args, code=0):
    result = CliRunner().invoke(app, ["run", *map(str, args)], env={"COLUMNS": "1000"})
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def model(folder):
    path = folder / "small.onnx"
    path.write_bytes(zoo.small_cnn())
    return path


def arrays(path):
    with np.load(path) as archive:
        return dict(archive)


def saved(path, nodes, inputs, outputs, initializers=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def floats(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def test_a_pipe_has_no_width(model, tmp_path):
    long = tmp_path / ("long-" * 40) / "model.onnx"
    long.parent.mkdir()
    long.write_bytes(model.read_bytes())
    text = CliRunner().invoke(app, ["run", str(long), "--repeat", "1"]).output
    assert f"{long} on SM8650, emulated; samples: 1 random, seed 0" in text


def test_random_inputs_are_said_and_the_same_each_time(model, tmp_path):
    files = [tmp_path / "a.npz", tmp_path / "b.npz", tmp_path / "c.npz"]
    for path, seed in zip(files, (0, 0, 1), strict=True):
        text = invoke(model, "--repeat", 1, "--seed", seed, "--output", path)
        assert f"1 random, seed {seed}" in text
        assert f"wrote {path}" in text
        assert "measured on this computer" in text
    first, again, other = map(arrays, files)
    for name, array in first.items():
        assert np.array_equal(array, again[name])
        assert not np.array_equal(array, other[name])


def test_results_are_those_of_onnxruntime(model, tmp_path):
    feeds = zoo.random_feeds(model.read_bytes())[0]
    invoke(model, "--repeat", 1, "--output", tmp_path / "o.npz")
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    outputs = arrays(tmp_path / "o.npz")
    for output, exact in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(outputs[output.name], exact, atol=0.02, rtol=0.02)


def test_check_tells_and_fails(model, tmp_path):
    path = tmp_path / "o.json"
    assert "ok" in invoke(model, "--repeat", 1, "--check", "--json", path)
    (found,) = json.loads(path.read_text())["check"].values()
    assert found["holds"]
    assert found["sqnr_db"] > 20
    text = invoke(model, "--repeat", 1, "--check", "--min-sqnr", 500, "--json", path, code=1)
    assert "too far" in text
    assert not any(found["holds"] for found in json.loads(path.read_text())["check"].values())


def test_queued_runs_profile_and_trace(model, tmp_path):
    report, trace = tmp_path / "o.json", tmp_path / "t.json"
    words = (
        "--async",
        "--depth",
        3,
        "--repeat",
        5,
        "--random",
        2,
        "--profile",
        "--trace",
        trace,
        "--json",
        report,
    )
    text = invoke(model, *words)
    assert "queued, 3 deep" in text
    assert "QNN (execute) time" in text
    assert "steps that take most" in text
    result = json.loads(report.read_text())
    assert result["asynchronous"]
    assert result["latency_ms"]["runs"] == 10
    assert result["latency_ms"]["min"] <= result["latency_ms"]["p50"] <= result["latency_ms"]["max"]
    ((first, *_),) = result["steps"]
    assert first[0] in text
    assert {event["name"] for event in result["profile"]} >= {"QNN (execute) time", "RPC (execute) time"}
    events = json.loads(trace.read_text())["traceEvents"]
    assert any(event["name"] == "running" for event in events if event["ph"] == "X")
    assert {"HMX0", "VTCM"} <= {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}


@pytest.fixture
def image_model(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    return saved(tmp_path / "image.onnx", nodes, [floats("x", [1, 3, 4, 5])], [floats("y", [1, 3, 4, 5])])


def test_inputs_from_every_kind_of_file(image_model, tmp_path):
    picture = np.arange(60, dtype=np.float32).reshape(1, 3, 4, 5) / 64
    np.savez(tmp_path / "in.npz", x=picture)
    np.save(tmp_path / "in.npy", picture)
    picture.tofile(tmp_path / "in.raw")
    (tmp_path / "list.txt").write_text("x:=in.raw\nx:=in.raw\n")
    for name, samples in (("in.npz", 1), ("in.npy", 1), ("in.raw", 1), ("list.txt", 2)):
        text = invoke(image_model, "--input", tmp_path / name, "--repeat", 1, "--output", tmp_path / "o.npz")
        assert f"{samples} from" in text
        y = arrays(tmp_path / "o.npz")["y"]
        expected = picture if samples == 1 else np.stack([picture, picture])
        np.testing.assert_array_equal(y, expected)


def test_inputs_from_a_picture(image_model, tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (5, 4), (255, 0, 128)).save(tmp_path / "p.png")
    invoke(image_model, "-i", tmp_path / "p.png", "--repeat", 1, "-o", tmp_path / "o.npz")
    y = arrays(tmp_path / "o.npz")["y"]
    np.testing.assert_allclose(y[0, :, 0, 0], [1, 0, 128 / 255], atol=1e-3)


def test_open_dimensions_and_frozen_inputs(tmp_path):
    nodes = [helper.make_node("Mul", ["x", "gain"], ["y"])]
    inputs = [floats("x", ["batch", 4]), floats("gain", [1])]
    path = saved(tmp_path / "open.onnx", nodes, inputs, [floats("y", ["batch", 4])])
    assert "--dim batch=1" in invoke(path, "--freeze", "gain=3", code=2)
    numbers = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.savez(tmp_path / "in.npz", x=numbers)
    words = ("--dim", "batch=2", "--freeze", "gain=3", "-i", tmp_path / "in.npz", "-o", tmp_path / "o.npz")
    invoke(path, *words, "--check", "--repeat", 1)
    np.testing.assert_array_equal(arrays(tmp_path / "o.npz")["y"], 3 * numbers)


def test_overflow_of_half_precision_is_found(tmp_path):
    big = numpy_helper.from_array(np.full([1], 300, np.float32), "big")
    nodes = [
        helper.make_node("Mul", ["x", "big"], ["m"], name="scale"),
        helper.make_node("Mul", ["m", "m"], ["s"], name="square"),
        helper.make_node("Sqrt", ["s"], ["y"], name="root"),
    ]
    path = saved(tmp_path / "big.onnx", nodes, [floats("x", [1, 4])], [floats("y", [1, 4])], [big])
    report = tmp_path / "o.json"
    np.savez(tmp_path / "in.npz", x=np.full((1, 4), 2, np.float32))
    text = invoke(path, "-i", tmp_path / "in.npz", "--check-range", "--repeat", 1, "--json", report, code=1)
    assert "'square'" in text
    assert [found["node"] for found in json.loads(report.read_text())["overflows"]] == ["square"]
    np.savez(tmp_path / "in.npz", x=np.full((1, 4), 0.01, np.float32))
    assert "stays within" in invoke(path, "-i", tmp_path / "in.npz", "--check-range", "--repeat", 1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["none.onnx"], "none.onnx"),
        (["zoo:resnet5"], "nearest known: resnet50"),
        (["zoo:tiny_mlp", "--soc", "SM9999"], "SM9999"),
        (["zoo:tiny_mlp", "--input", "/nowhere"], "no samples"),
    ],
    ids=["file", "zoo", "soc", "input"],
)
def test_what_is_not_there_is_one_clear_line(words, expected):
    text = invoke(*words, code=2)
    assert expected in text
    assert "Traceback" not in text


def test_a_model_in_parts_tells_which_node_is_where_and_why(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Det", ["a"], ["d"], name="middle"),
        helper.make_node("Mul", ["a", "d"], ["y"], name="last"),
    ]
    path = saved(tmp_path / "det.onnx", nodes, [floats("x", [1, 4, 4])], [floats("y", [1, 4, 4])])
    report = tmp_path / "run.json"
    text = invoke(path, "--repeat", 1, "--json", report)
    assert "runs in 3 parts" in text
    assert "middle (Det)" in text
    parts = json.loads(report.read_text())["partition"]
    assert [[node["name"] for node in part["nodes"]] for part in parts] == [["first"], ["middle"], ["last"]]
    assert "not supported" in parts[1]["nodes"][0]["reason"]
