"""Op packages with a C interface of the CPU kind: from a C client of our library, and from Python."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

import openhtp as htp
import openhtp.capi
from openhtp.cli.main import app
from openhtp.core.status import QNN_BACKEND_ERROR_NOT_SUPPORTED
from tests.capi.c_programs import can_load_python, host_environment

HERE = Path(__file__).parent
INCLUDE = Path(openhtp.capi.__file__).parent / "include"
X = np.linspace(-3, 3, 8, dtype=np.float32).reshape(1, 8)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, compiled."""
    path = tmp_path_factory.mktemp("c_ops") / "libc_ops.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wno-unused-parameter", f"-I{INCLUDE}"]
    subprocess.run(["gcc", *flags, "-o", str(path), str(HERE / "c_ops.c"), "-lm"], check=True)
    return path


def swish(x: Any, beta: float) -> Any:
    return x / (1 + np.exp(-beta * x))


def c_graph(context: htp.Context, op: str, dtype: str = "float32", **tensor: Any) -> htp.Graph:
    graph = context.create_graph(op)
    graph.add_tensor("x", X.shape, dtype, kind="app_write", **tensor)
    graph.add_tensor("y", X.shape, dtype, kind="app_read", **tensor)
    params = {"beta": 2.0} if op == "Swish" else {}
    graph.add_node(op, inputs=["x"], outputs=["y"], params=params, package="c.ops")
    graph.finalize()
    return graph


@pytest.mark.skipif(not can_load_python(), reason="this Python has no shared library")
@pytest.mark.parametrize("target", ["-", "CPU", "HTP"])
def test_a_c_client_registers_and_runs_a_package(library: Path, tmp_path: Path, target: str) -> None:
    client = tmp_path / "client"
    flags = ["-O1", "-Wall", f"-I{INCLUDE}"]
    subprocess.run(["gcc", *flags, "-o", str(client), str(HERE / "client.c"), "-ldl", "-lm"], check=True)
    command = [str(client), str(htp.backend_path()), str(library), target]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=host_environment())
    said = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert {name: int(code) for name, code in said.items() if "." not in code} == {
        "capability": 0,
        "again": 4009,
        "missing file": 4005,
        "missing provider": 4006,
        "newer": 4008,
        "failing": 4007,
        "target": 4004,
        "unknown package": 4005,
        "absent": 5008,
    }
    assert float(said["worst"]) < 1e-6  # the C library computes floats in 32 bits where no chip is named
    assert float(said["restored"]) < 1e-6


@pytest.mark.parametrize("host", ["thread", "process"])
def test_python_uses_the_same_package(backend: htp.Backend, library: Path, host: str) -> None:
    package = backend.register_op_package(f"{library}:c_ops_provider")
    assert (package.name, package.version) == ("c.ops", "2.1.0")
    context = backend.create_device(host=host).create_context()
    result = c_graph(context, "Swish").execute({"x": X})["y"]
    np.testing.assert_allclose(result, swish(X, 2.0), atol=4e-3)
    counts = c_graph(context, "Counts")
    assert [counts.execute({"x": X})["y"][0, 0] for _ in range(3)] == [1, 2, 3]
    with pytest.raises(htp.ExecutionError, match=r"c\.ops::Fails .*its function answered 1100"):
        c_graph(context, "Fails").execute({"x": X})


def test_quantized_numbers_come_with_their_encoding(backend: htp.Backend, library: Path) -> None:
    backend.register_op_package(f"{library}:c_ops_provider")
    code = htp.ScaleOffset(0.05, -128)
    graph = c_graph(backend.create_device(host="thread").create_context(), "Swish", "ufixed8", quant=code)
    stored = np.arange(0, 256, 32, dtype=np.uint8).reshape(1, 8)
    expected = np.clip(np.rint(swish(0.05 * (stored.astype(float) - 128), 2.0) / 0.05) + 128, 0, 255)
    np.testing.assert_array_equal(graph.execute({"x": stored})["y"], expected)


def test_the_package_s_own_validator_and_types(backend: htp.Backend, library: Path) -> None:
    backend.register_op_package(f"{library}:c_ops_provider")
    context = backend.create_device(host="thread").create_context()
    graph = context.create_graph("g")
    for name, dtype, kind in (
        ("x", "float32", "app_write"),
        ("i", "int64", "app_write"),
        ("y", "float32", "app_read"),
    ):
        graph.add_tensor(name, X.shape, dtype, kind=kind)
    add = functools.partial(graph.add_node, "Swish", outputs=["y"], package="c.ops")
    with pytest.raises(htp.UnsupportedOp, match=r"c\.ops accepts it \(validateOpConfig\)"):
        add(inputs=["x", "x"])
    with pytest.raises(htp.UnsupportedOp, match="8-bit or 32-bit"):
        add(inputs=["i"])


def test_hexagon_code_is_refused(backend: htp.Backend, tmp_path: Path) -> None:
    path = tmp_path / "libhexagon.so"
    path.write_bytes(b"\x7fELF\x01\x01\x01" + bytes(9) + (3).to_bytes(2, "little") + (164).to_bytes(2, "little"))
    with pytest.raises(htp.UnsupportedFeature, match="holds Hexagon code") as caught:
        backend.register_op_package(f"{path}:provider")
    assert caught.value.code == QNN_BACKEND_ERROR_NOT_SUPPORTED.code
    path.write_text("no library")
    with pytest.raises(htp.InvalidArgument, match="is no library for this computer"):
        backend.register_op_package(f"{path}:provider")


def test_the_vendor_s_commands_take_packages(library: Path, tmp_path: Path) -> None:
    value = functools.partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=X.shape)
    node = helper.make_node("Swish", ["x"], ["y"], domain="c.ops", beta=2.0)
    graph = helper.make_graph([node], "net", [value("x")], [value("y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("c.ops", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "net.onnx")
    X.tofile(tmp_path / "x.raw")
    (tmp_path / "list.txt").write_text(str(tmp_path / "x.raw"))
    packages = ["--op_packages", f"{library}:c_ops_provider:CPU"]
    runner, out = CliRunner(), tmp_path / "out"
    command = ["context-binary-generator", "--model", str(tmp_path / "net.onnx"), "--binary_file", "saved"]
    done = runner.invoke(app, [*command, "--output_dir", str(out), *packages])
    assert done.exit_code == 0, done.output
    lists = ["--input_list", str(tmp_path / "list.txt"), "--output_dir", str(out)]
    done = runner.invoke(app, ["net-run", "--retrieve_context", str(out / "saved.bin"), *lists, *packages])
    assert done.exit_code == 0, done.output
    result = np.fromfile(next(out.glob("**/Result_0/*.raw")), np.float32)
    np.testing.assert_allclose(result.reshape(X.shape), swish(X, 2.0), atol=4e-3)
    done = runner.invoke(app, ["net-run", "--retrieve_context", str(out / "saved.bin"), *lists])
    assert done.exit_code != 0
    assert "'c.ops' 2.1.0, which is not registered" in " ".join(done.output.split())
