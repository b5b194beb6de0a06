"""What type checkers, ``dir()`` and a wheel know of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import openhtp as htp

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("program.py")
BIN = Path(sys.executable).parent
WRONG = """
import openhtp as htp
session = htp.InferenceSession(7)
session.no_such_method()
htp.no_such_name
"""


def _mypy(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """As a user's project has it: nothing of this repository's configuration, only the package."""
    command = [BIN / "mypy", "--strict", "--config-file", os.devnull, "--cache-dir", folder / "cache", path]
    environment = {**os.environ, "MYPYPATH": ""}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_program_passes_mypy_and_a_wrong_one_does_not(tmp_path) -> None:
    done = _mypy(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    told = _mypy(wrong, tmp_path).stdout
    for part in ("incompatible type", '"InferenceSession" has no attribute', "no_such_name"):
        assert part in told, told


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_program_passes_pyright(tmp_path) -> None:
    tool = shutil.which("pyright", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    if tool is None:
        pytest.skip("pyright is not installed")
    (tmp_path / "program.py").write_text(PROGRAM.read_text())
    command = [tool, "--pythonpath", sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_program_runs() -> None:
    command = [sys.executable, "-X", "faulthandler", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_lazy_names_are_listed_and_there() -> None:
    names = dir(htp)
    assert set(htp.__all__) <= set(names)
    for name in ("InferenceSession", "PendingRun", "estimate", "onnx", "plan", "testing", "zoo"):
        assert name in names
        assert getattr(htp, name) is not None


def test_listing_names_loads_none_of_them() -> None:
    code = "import sys, openhtp; dir(openhtp); print('onnxruntime' in sys.modules, 'onnx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.slow
def test_wheel_says_that_it_is_typed(tmp_path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert "openhtp/py.typed" in zipfile.ZipFile(wheel).namelist()


def test_package_has_the_marker() -> None:
    assert Path(htp.__file__).with_name("py.typed").is_file()
