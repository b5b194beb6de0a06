"""The promises of the code base about itself: layers, public names, file sizes, no machine paths."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import openhtp
from openhtp.ops import op_names
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src/openhtp").rglob("*.py"))


def test_public_names_are_exactly_those_in_all() -> None:
    assert sorted(openhtp.__all__) == list(openhtp.__all__)
    for name in openhtp.__all__:
        assert hasattr(openhtp, name), name
    modules = {"core", "runtime", "device", "rpc", "engine", "ops", "ir", "program", "compiler", "hw", "sched"}
    modules |= {"records", "report", "planning", "cli", "testing", "bench", "zoo", "frontend", "vendor", "cost"}
    modules |= {
        "estimation",
        "advising",
        "abi",
        "options",
        "ort",
        "sweeping",
        "tracing",
        "memory",
        "capi",
        "config",
        "tools",
        "genie",
    }
    extra = {name for name in vars(openhtp) if not name.startswith("_")} - set(openhtp.__all__) - modules
    assert extra <= {"VERSION", "llm", "onnx", "session"}, extra


def test_layers() -> None:
    tool = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    lines = text.count("\n")
    assert lines <= 600 or path.name == "status.py", f"{path} has {lines} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 60, f"{path}:{node.lineno} {node.name} has {length} lines"


# Underscored by others: documented names of the standard library, and two of ONNX Runtime that the engine needs.
_NOT_OURS = {"_exit", "_fields_", "_make", "_replace", "_value2member_map_", "_sess", "_iobinding"}


def _room(path: Path) -> str:
    """Modules that may know each other's private attributes: those of a room of objects, otherwise one alone."""
    inner = path.relative_to(ROOT / "src/openhtp")
    if inner.parts[0] == "runtime":  # its rooms are packages: objects, calls, links, binaries, instruments
        return str(inner.parent)
    return "session" if inner.parts[0] == "session" else str(inner)


def _names(tree: ast.AST) -> set[str]:
    """Private names that a module defines: functions, fields, slots, and attributes that it sets on itself."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # __slots__
            found.add(node.value)
    return found


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _foreign_privates(sources: dict[str, list[str]]) -> list[str]:
    """Accesses to private attributes that nothing in the accessing room defines."""
    found = []
    for room, texts in sources.items():
        trees = [ast.parse(text) for text in texts]
        own = set().union(*map(_names, trees)) | _NOT_OURS
        found += [
            f"{room}: {ast.unparse(node)}"
            for tree in trees
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
            and not _is_self(node.value)
            and node.attr not in own
        ]
    return found


def test_no_room_reaches_into_another() -> None:
    """What one needs of another has a name without an underscore: Callee, Interrupt, Sheet, OpenContext, Link."""
    sources: dict[str, list[str]] = {}
    for path in SOURCES:
        sources.setdefault(_room(path), []).append(path.read_text())
    assert _foreign_privates(sources) == []


def test_reaching_into_another_room_is_found() -> None:
    owner = "class A:\n    def __init__(self, other):\n        self._x = other._x\n"
    reader = "def f(a):\n    return a.b._x\n"
    assert _foreign_privates({"a.py": [owner], "b.py": [reader]}) == ["b.py: a.b._x"]
    assert _foreign_privates({"one": [owner, reader]}) == []


def test_only_the_clock_reads_the_time_on_the_device() -> None:
    for path in (ROOT / "src/openhtp/device").glob("*.py"):
        if path.name != "clock.py":
            assert not re.search(r"\bimport time\b|\bfrom time\b", path.read_text()), path


def _op_names_in(node: ast.AST, known: frozenset[str]) -> list[str]:
    """Names of operations that a literal collection, or one text, lists."""
    if isinstance(node, ast.Set | ast.Tuple | ast.List):
        words = [item.value for item in node.elts if isinstance(item, ast.Constant)]
    elif isinstance(node, ast.Dict):
        words = [key.value for key in node.keys if isinstance(key, ast.Constant)]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        words = node.value.split()
    else:
        return []
    return [word for word in words if isinstance(word, str) and word in known]


def test_no_list_of_operations_outside_their_own_files() -> None:
    """What an op is stands in its file, so that adding one edits no list. The frontend lists ONNX's own."""
    known = frozenset(op_names())
    not_onnx = known - {schema.name for schema in onnx.defs.get_all_schemas()}
    assert len(_op_names_in(ast.parse("{'Relu', 'Add', 'Tanh', 'Conv2d'}").body[0].value, known)) == 3
    for path in SOURCES:
        room = path.relative_to(ROOT / "src/openhtp").parts[0]
        if room == "ops":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            found = _op_names_in(node, not_onnx if room == "frontend" else known)
            assert len(found) < 3, f"{path}:{node.lineno} lists {found}; make it a field of OpDef"


def test_a_fact_stands_in_one_place() -> None:
    """No two modules give one public name the same plain value: the second is to import the first."""
    seen: dict[tuple[str, str], Path] = {}
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name, value = node.targets[0].id, ast.dump(node.value)
                plain = not any(isinstance(part, ast.Name | ast.Call) for part in ast.walk(node.value))
                if name.isupper() and not name.startswith("_") and plain:
                    first = seen.setdefault((name, value), path)
                    assert first == path, f"{name} stands in {first} and in {path}"


def test_onnxruntime_has_one_door() -> None:
    """Imported elsewhere it would open its telemetry store: see the door's docstring."""
    door = ROOT / "src/openhtp/engine/onnxruntime.py"
    others = [path for folder in ("src", "tests", "tools", "examples") for path in (ROOT / folder).rglob("*.py")]
    for path in others:
        match = re.search(r"^\s*(import|from) onnxruntime\b", path.read_text(encoding="utf-8"), re.MULTILINE)
        # A program of a user's that is about ONNX Runtime's own provider imports it as its users do.
        assert path in (door, ROOT / "examples/ort_two_sessions.py") or match is None, path


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
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE_S)
