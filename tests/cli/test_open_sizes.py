"""Whatever command takes an ONNX file takes the sizes that it leaves open, in the words of its own error."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from openhtp.cli.main import app

COMMANDS = {
    "advise": "advise m.onnx --soc SM8650",
    "estimate": "estimate m.onnx --soc SM8650",
    "run": "run m.onnx --repeat 1",
    "profile": "profile m.onnx --runs 1 --output p",
    "quantize": "quantize m.onnx --random 1",
    "net-run": "net-run --model m.onnx --input_list list.txt --output_dir o",
    "context-binary-generator": "context-binary-generator --model m.onnx --binary_file b --output_dir o",
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch size", 8]),
        helper.make_tensor_value_info("gain", TensorProto.FLOAT, [1]),
    ]
    nodes = [helper.make_node("Mul", ["x", "gain"], ["z"]), helper.make_node("Tanh", ["z"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch size", 8])]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "m.onnx")
    np.ones(8, np.float32).tofile("x.raw")
    Path("list.txt").write_text("x:=x.raw\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_error_can_be_pasted(command: str) -> None:
    words = shlex.split(COMMANDS[command])
    refused = CliRunner().invoke(app, words, env={"COLUMNS": "1000"})
    assert refused.exit_code != 0
    pasted = re.search(r" or (--dim .*?) (\(QNN|\[)", refused.output)
    assert pasted is not None, refused.output
    taken = CliRunner().invoke(app, [*words, *shlex.split(pasted.group(1)), "--freeze", "gain=2"])
    assert taken.exit_code == 0, taken.output


def test_net_run_computes_with_the_size_and_the_constant() -> None:
    words = [*shlex.split(COMMANDS["net-run"]), "--dim", "batch size=1", "--freeze", "gain=0.5"]
    assert CliRunner().invoke(app, words).exit_code == 0
    output = np.fromfile("o/Result_0/y.raw", np.float32)
    assert np.allclose(output, np.tanh(0.5), atol=1e-3)


def test_a_config_for_throughput_is_answered_with_what_helps() -> None:
    Path("case.json").write_text(
        '{"backends": [{"backendName": "b", "backendPath": "libQnnHtp.so"}],'
        ' "models": [{"modelName": "m", "modelPath": "m.onnx"}], "contexts": [{"contextName": "c"}],'
        ' "testCase": {"iteration": 1, "threads": [{"threadName": "t", "backend": "b", "context": "c",'
        ' "model": "m", "loop": 1}]}}'
    )
    result = CliRunner().invoke(app, ["throughput-net-run", "--config", "case.json"], env={"COLUMNS": "1000"})
    assert result.exit_code != 0
    assert "axis 0 of input 'x' (batch size)" in result.output
    assert "context-binary-generator" in result.output
    assert "dims=" not in result.output
