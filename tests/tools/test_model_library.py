"""Models compiled as libraries, as converters make them, in place of ONNX files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from openhtp.capi.identity import backend_path
from openhtp.core.errors import QnnError
from tests.tools.conftest import run

SOURCE = Path(__file__).with_name("model_library.c")
VALUES = np.array([[-1.5, 0, 2, 100]], np.float32)


def compiled(path: Path, *, later: int = 30, operation: str = "ElementWiseAdd") -> Path:
    try:
        include = Path(backend_path()).parents[1] / "include"
    except QnnError:
        pytest.skip("there was no C compiler when openhtp was built")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    flags = [f"-I{include}", f"-DLATER={later}", f'-DOPERATION="{operation}"', "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(path)], check=True)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    VALUES.tofile("x.raw")
    Path("list.txt").write_text("x.raw\n")
    return tmp_path


@pytest.mark.parametrize("later", [0, 30, 90])
def test_a_model_library_runs_whatever_version_it_was_made_for(folder: Path, later: int) -> None:
    compiled(folder / "libdouble.so", later=later)
    ran = run("net-run", "--model", "./libdouble.so", "--backend", "libQnnHtp.so", "--input_list", "list.txt")
    assert ran.exit_code == 0, ran.output
    np.testing.assert_array_equal(np.fromfile("output/Result_0/y.raw", np.float32), VALUES.ravel() * 2)


def test_a_model_library_is_prepared_with_options_and_profiled(folder: Path) -> None:
    """The page's steps for op traces, with the model as it has it."""
    compiled(folder / "double.so")
    optrace = ("--profiling_level", "detailed", "--profiling_option", "optrace")
    Path("HtpConfigFile.json").write_text('{"backend_extensions": {"config_file_path": "htp.json"}}')
    Path("htp.json").write_text('{"graphs": [{"graph_names": ["double"], "vtcm_mb": 2}]}')
    made = run(
        *("context-binary-generator", *optrace, "--backend", backend_path(), "--model", "double.so"),
        *("--config_file", "HtpConfigFile.json", "--output_dir", "prepared", "--binary_file", "context"),
    )
    assert made.exit_code == 0, made.output
    assert Path("double_schematic.bin").is_file()
    words = ("--retrieve_context", "prepared/context.bin", "--input_list", "list.txt", "--output_dir", ".")
    ran = run("net-run", *optrace, *words)
    assert ran.exit_code == 0, ran.output
    np.testing.assert_array_equal(np.fromfile("Result_0/y.raw", np.float32), VALUES.ravel() * 2)
    words = (
        "--input_log",
        "qnn-profiling-data.log",
        "--schematic",
        "double_schematic.bin",
        "--output",
        "trace.json",
    )
    seen = run("profile-viewer", "--reader", "optrace", *words)
    assert seen.exit_code == 0, seen.output
    assert '"add"' in Path("trace.json").read_text()
    shown = run("context-binary-utility", "--context_binary", "prepared/context.bin", "--json_file", "info.json")
    assert shown.exit_code == 0, shown.output
    assert '"graphName": "double"' in Path("info.json").read_text()


def test_a_model_library_that_composes_nothing_says_why(folder: Path) -> None:
    compiled(folder / "double.so", operation="NoSuchOperation")
    ran = run("net-run", "--model", "double.so", "--input_list", "list.txt")
    assert ran.exit_code != 0
    assert "composed no graphs (code 2)" in ran.output
    assert "NoSuchOperation" in ran.output


def test_a_library_that_is_no_model_is_refused(folder: Path) -> None:
    compiled(folder / "double.so")
    shutil.copy(backend_path(), "other.so")
    ran = run("net-run", "--model", "other.so", "--input_list", "list.txt")
    assert ran.exit_code != 0
    assert "has no QnnModel_composeGraphs" in ran.output
