"""What lies in the working folder is data, not a module: no process of ours runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import openhtp as htp
from openhtp.core import interpreter
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S

TRAPS = ("json", "numpy", "openhtp", "msgspec", "argparse", "socket", "onnxruntime", "sitecustomize")


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder full of modules that tell when they are run."""
    folder = tmp_path / "trap"
    folder.mkdir()
    for name in TRAPS:
        (folder / f"{name}.py").write_text(
            f"open({str(folder / f'sprung-{name}')!r}, 'w').close()\nraise ImportError('the trap {name}')\n"
        )
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    return folder


def sprung(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("sprung-*"))


def test_the_trap_works(trap: Path) -> None:
    subprocess.run([sys.executable, "-c", "import json"], capture_output=True, check=False)
    assert sprung(trap) == ["sprung-json"]


@pytest.mark.parametrize("path", [None, "", ":", f"{os.pathsep}/nonexistent"], ids=repr)
def test_a_private_device(trap: Path, path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if path is not None:
        monkeypatch.setenv("PYTHONPATH", path)
    with htp.Backend() as backend:
        relu_graph(backend.create_device().create_context()).execute({"x": ramp()})
    assert sprung(trap) == []


def test_a_device_started_by_the_command(trap: Path) -> None:
    tool = Path(sys.executable).parent / "openhtp"
    for words in (("start", "--name", "trapped"), ("list",), ("stop", "--name", "trapped")):
        subprocess.run([tool, "device", *words], capture_output=True, check=True, timeout=PATIENCE_S)
    assert sprung(trap) == []


def test_the_vendors_process(trap: Path) -> None:
    file = trap / "libQnnHtp.so"
    file.write_bytes(Path("/proc/self/exe").read_bytes())  # of this processor, and no library of anybody's
    with (
        htp.Backend(library=file) as backend,
        pytest.raises(htp.QnnError, match="cannot be loaded"),
    ):
        backend.create_device()
    assert sprung(trap) == []


def test_the_benchmarks_fresh_interpreter(trap: Path) -> None:
    done = subprocess.run(
        interpreter.command("-c", "import json, numpy, openhtp; print(openhtp.__file__)"),
        env=interpreter.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()) == Path(htp.__file__)
    assert sprung(trap) == []


def test_every_process_is_started_in_the_one_way() -> None:
    package = Path(htp.__file__).parent
    home = package / "core" / "interpreter.py"
    users = [path for path in package.rglob("*.py") if "sys.executable" in path.read_text(encoding="utf-8")]
    assert users == [home]


def test_the_package_is_found_where_it_was_found_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the package on a path of the user's, with a device that must come from the same copy."""
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "openhtp").symlink_to(Path(htp.__file__).parent)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from openhtp.core import interpreter\n"
        "print(interpreter.environment().get('PYTHONPATH', ''))\n"
    )
    for setting in (None, "relative"):
        if setting is not None:
            monkeypatch.setenv("PYTHONPATH", setting)
        done = subprocess.run(
            interpreter.command("-c", script, str(copy)), cwd=tmp_path, capture_output=True, text=True, check=True
        )
        folders = done.stdout.strip().split(os.pathsep)
        assert folders[0] == str(copy)
        assert all(os.path.isabs(folder) for folder in folders)
        assert setting is None or str(tmp_path / "relative") in folders
