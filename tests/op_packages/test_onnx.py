"""Operators of a package in ONNX files: a node's domain is the package's name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

import openhtp as htp
from openhtp.cli.main import app
from openhtp.ops._packages import find_package
from tests.op_packages.own_ops import PACKAGE

X = np.linspace(-2, 2, 1 * 3 * 4 * 4, dtype=np.float32).reshape(1, 3, 4, 4)
REFERENCE = "tests.op_packages.own_ops:PACKAGE"


def model(*nodes: Any, output: str = "y", kind: int = TensorProto.FLOAT, shape: Any = X.shape) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info(output, kind, shape)],
        [onnx.numpy_helper.from_array(np.ones((3, 3, 1, 1), np.float32) / 3, "w")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("tests.ops", 1)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return made


CONV = helper.make_node("Conv", ["x", "w"], ["c"], name="conv")
SWISH = helper.make_node("Swish", ["c"], ["s"], name="swish", domain="tests.ops", beta=2.0)
RELU = helper.make_node("Relu", ["s"], ["y"], name="relu")
NET = model(CONV, SWISH, RELU)


def expected() -> np.ndarray:
    convolved = np.repeat(X.mean(1, keepdims=True), 3, 1)
    return np.maximum(convolved / (1 + np.exp(-2 * convolved)), 0)


def test_a_loaded_model_has_the_operator(backend: htp.Backend) -> None:
    backend.register_op_package(PACKAGE)
    source = htp.onnx.load(NET)
    node = next(node for node in source.nodes if node.package == "tests.ops")
    assert (node.op, node.name, node.params) == ("Swish", "swish", {"beta": 2.0})
    graph = backend.create_device(host="thread").create_context().compose_graph(source)
    graph.finalize()
    np.testing.assert_allclose(graph.execute({"x": X})["y"], expected(), atol=3e-3)


def test_a_graph_is_not_composed_by_a_backend_without_the_package(backend: htp.Backend) -> None:
    with htp.Backend() as other:
        other.register_op_package(PACKAGE)
        source = htp.onnx.load(NET)
        with pytest.raises(htp.UnsupportedOp, match=r"'tests\.ops' is not registered with this backend"):
            backend.create_device(host="thread").create_context().compose_graph(source)


def test_without_the_package_the_model_is_refused_in_words() -> None:
    with pytest.raises(htp.UnsupportedOp, match=r"no op package 'tests\.ops' is registered"):
        htp.onnx.load(NET)


def test_a_session_without_the_package_is_refused_in_words_too() -> None:
    """Although the rest could run on the HTP, and what the HTP does not take on the CPU."""
    with pytest.raises(htp.BadModel, match=r"no op package 'tests\.ops' is registered"):
        htp.InferenceSession(NET)


@pytest.mark.parametrize("transport", ["inprocess", "rpc"])
def test_a_session_runs_it(transport: str) -> None:
    with htp.InferenceSession(NET, transport=transport, op_packages=[PACKAGE]) as session:
        assert [part.provider for part in session.get_partition()] == ["QNNExecutionProvider"]
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), atol=3e-3)
    assert find_package("tests.ops") is None
    with htp.InferenceSession(NET, transport=transport, op_packages=[REFERENCE]) as session:
        np.testing.assert_allclose(session.run_async(None, {"x": X}).result()[0], expected(), atol=3e-3)


def test_beside_a_node_for_the_cpu() -> None:
    """The sizes after an operator of a package are known when a model is cut into parts, too."""
    node = helper.make_node("Unique", ["s"], ["y"], name="unique", sorted=1)
    source = model(CONV, SWISH, node, shape=["n"])
    with htp.InferenceSession(source, transport="inprocess", op_packages=[PACKAGE]) as session:
        assert [part.provider for part in session.get_partition()] == [
            "QNNExecutionProvider",
            "CPUExecutionProvider",
        ]
        session.run(None, {"x": X})


def test_outputs_of_other_types() -> None:
    node = helper.make_node("SumAndPlace", ["x"], ["sum", "place"], name="both", domain="tests.ops")
    source = model(node, output="place", kind=TensorProto.INT64, shape=X.shape[:-1])
    with htp.InferenceSession(source, transport="inprocess", op_packages=[PACKAGE]) as session:
        result = session.run(None, {"x": X})[0]
    assert result.dtype == np.int64
    np.testing.assert_array_equal(result, X.argmax(-1))


def test_a_quantized_model_computes_it_in_fixed_point(backend: htp.Backend, tmp_path: Path) -> None:
    backend.register_op_package(PACKAGE)
    scale = [
        onnx.numpy_helper.from_array(np.array(v, t), n) for v, t, n in ((0.02, "f4", "sc"), (128, "u1", "zp"))
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sc", "zp"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "sc", "zp"], ["xd"]),
        helper.make_node("Swish", ["xd"], ["s"], name="swish", domain="tests.ops"),
        helper.make_node("QuantizeLinear", ["s", "sc", "zp"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "sc", "zp"], ["y"]),
    ]
    proto = onnx.load_from_string(model(*nodes))
    proto.graph.initializer.extend(scale)
    graph = htp.onnx.load(proto.SerializeToString())
    own = next(node for node in graph.nodes if node.package == "tests.ops")
    assert [graph.tensors[name].dtype.short for name in (*own.inputs, *own.outputs) if name] == ["ufixed8"] * 2


def test_estimates_and_commands(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(NET)
    assert "tests.ops::Swish" in [op.op for op in htp.estimate(path, "SM8650", op_packages=[PACKAGE]).ops]
    runner, out = CliRunner(), str(tmp_path / "out.json")
    done = runner.invoke(app, ["run", str(path), "--op-package", REFERENCE, "--repeat", "1", "--json", out])
    assert done.exit_code == 0, done.output
    assert json.loads(Path(out).read_text())["partition"][0]["provider"] == "QNNExecutionProvider"
    done = runner.invoke(app, ["estimate", str(path), "--op-package", REFERENCE, "--soc", "SM8650", "--json", out])
    assert done.exit_code == 0, done.output
    ops = json.loads(Path(out).read_text())["estimates"][0]["ops"]
    assert any("Swish" in str(op) for op in ops)
    done = runner.invoke(app, ["run", str(path), "--op-package", REFERENCE, "--check"])
    assert done.exit_code == 2
    assert "ONNX Runtime has no operators of tests.ops" in " ".join(done.output.split())
    scenario = tmp_path / "plan.yaml"
    scenario.write_text(
        "unit: ms\nduration: 20\ndevice: {soc: SM8650}\n"
        "clients:\n  - {name: own, model: net.onnx}\nevents:\n  - {client: own, every: 5}\n"
    )
    done = runner.invoke(app, ["plan", str(scenario), "--op-package", REFERENCE])
    assert done.exit_code == 0, done.output


def test_a_device_that_is_started_with_a_package(tmp_path: Path) -> None:
    name = f"with-ops-{tmp_path.name}"[:40]
    start = [sys.executable, "-m", "openhtp", "device", "start", "--name", name, "--op-package", REFERENCE]
    subprocess.run(start, check=True, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL)
    try:
        with htp.InferenceSession(NET, device_name=name, op_packages=[PACKAGE]) as session:
            np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), atol=3e-3)
    finally:
        subprocess.run([sys.executable, "-m", "openhtp", "device", "stop", "--name", name], check=True)
