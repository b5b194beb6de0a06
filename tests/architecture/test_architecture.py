"""The promises of the code base about itself: layers, public names, file sizes, no machine paths."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import openhtp

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src/openhtp").rglob("*.py"))


def test_public_names_are_exactly_those_in_all() -> None:
    assert sorted(openhtp.__all__) == list(openhtp.__all__)
    for name in openhtp.__all__:
        assert hasattr(openhtp, name), name
    modules = {"core", "runtime", "device", "rpc", "engine", "ops", "ir", "program", "compiler", "hw", "sched"}
    modules |= {"trace", "report", "plan", "cli", "testing", "bench", "zoo", "frontend", "vendor", "cost"}
    modules |= {"estimation"}
    extra = {name for name in vars(openhtp) if not name.startswith("_")} - set(openhtp.__all__) - modules
    assert extra <= {"VERSION", "onnx", "session", "lazy"}, extra


def test_layers() -> None:
    tool = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    lines = text.count("\n")
    assert lines <= 400 or path.name == "status.py", f"{path} has {lines} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 60, f"{path}:{node.lineno} {node.name} has {length} lines"


def test_only_the_clock_reads_the_time_on_the_device() -> None:
    for path in (ROOT / "src/openhtp/device").glob("*.py"):
        if path.name != "clock.py":
            assert not re.search(r"\bimport time\b|\bfrom time\b", path.read_text()), path


def test_onnxruntime_has_one_door() -> None:
    """Imported elsewhere it would open its telemetry store: see the door's docstring."""
    door = ROOT / "src/openhtp/engine/onnxruntime.py"
    others = [path for folder in ("src", "tests", "tools", "examples") for path in (ROOT / folder).rglob("*.py")]
    for path in others:
        found = re.search(r"^\s*(import|from) onnxruntime\b", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert path == door or found is None, path


def test_no_paths_of_a_machine() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    words = [f"/{name}/" for name in ("work", "farm", "root")]
    for name in tracked.stdout.split():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".yaml"} and path.is_file():
            text = path.read_text(encoding="utf-8")
            assert not any(word in text for word in words), name


def test_every_package_says_what_it_is_for() -> None:
    for path in (ROOT / "src/openhtp").rglob("__init__.py"):
        doc = ast.get_docstring(ast.parse(path.read_text()))
        assert doc is not None, path
        assert not doc.startswith("To be"), path


def test_doors_open_from_the_package_itself() -> None:
    script = """if True:
        import openhtp
        assert "onnxruntime" not in __import__("sys").modules
        result = openhtp.plan({"device": {"hvx": 1, "hmx": 1, "vtcm_mb": 1}, "clients": [{"name": "A"}],
                               "events": [{"at": 0, "client": "A", "run": 5}]})
        assert result["A"].max == 5
        openhtp.InferenceSession, openhtp.onnx.load, openhtp.testing.hold
    """
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
