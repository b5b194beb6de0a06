from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from onnx import TensorProto, helper
from typer.testing import CliRunner

from openhtp.cli.main import app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in arguments])


def model_bytes(scale: float = 2.0, batch: int = 1, ids: bool = False) -> bytes:
    """``y = relu(scale * x [+ float(ids)])`` and ``between`` inside it."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (batch, 4))]
    nodes = [helper.make_node("Mul", ["x", "s"], ["between"], name="mul")]
    last = "between"
    if ids:
        inputs.append(helper.make_tensor_value_info("ids", TensorProto.INT32, (batch, 4)))
        nodes.append(helper.make_node("Cast", ["ids"], ["floats"], to=TensorProto.FLOAT, name="cast"))
        nodes.append(helper.make_node("Add", ["between", "floats"], ["sum"], name="add"))
        last = "sum"
    nodes.append(helper.make_node("Relu", [last], ["y"], name="relu"))
    graph = helper.make_graph(
        nodes,
        "torch_graph",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (batch, 4))],
        [helper.make_tensor("s", TensorProto.FLOAT, (1,), [scale])],
    )
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model, three inputs and their list."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "double.onnx").write_bytes(model_bytes())
    for number in range(3):
        write(tmp_path / f"x{number}.raw", np.arange(4) - 1.0 + number)
    (tmp_path / "list.txt").write_text("# three inferences\nx:=x0.raw\n\nx1.raw\nx:=x2.raw\n")
    return tmp_path


def write(path: Path, values: Any, dtype: str = "<f4") -> None:
    path.write_bytes(np.asarray(values).astype(dtype).tobytes())


def read(path: Path, dtype: str = "<f4") -> list[float]:
    return list(np.frombuffer(path.read_bytes(), dtype).tolist())
