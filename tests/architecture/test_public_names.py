"""The names of ``openhtp``: one table, which type checkers read too, and old package names that still answer."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import openhtp
from tests.waiting import PATIENCE_S


def test_the_table_exports_each_name_that_is_there() -> None:
    """Type checkers take a name in a stub as public only if it is imported under its own name."""
    stub = Path(openhtp.__file__).with_suffix(".pyi")
    imports = [node for node in ast.parse(stub.read_text("utf-8")).body if isinstance(node, ast.ImportFrom)]
    names = [alias for node in imports for alias in node.names]
    assert [alias.name for alias in names] == [alias.asname for alias in names]
    assert {alias.name for alias in names} <= set(dir(openhtp))
    for alias in names:
        assert getattr(openhtp, alias.name) is not None


def test_functions_hide_no_package() -> None:
    for name in ("plan", "sweep", "trace"):
        assert type(getattr(openhtp, name)).__name__ == "function"


OLD_NAMES = {
    "a package": "import openhtp.plan; assert openhtp.plan.plan is openhtp.planning.plan",
    "a name": "from openhtp.plan import BadScenario as old; assert old is openhtp.planning.BadScenario",
    "all names": "from openhtp.sweep import *; assert Study is openhtp.sweeping.Study",
    "a module": "import openhtp.plan.schema as old; from openhtp.planning import schema; assert old is schema",
    "a class in a module": "from openhtp.plan.result import PlanResult as old; old.__module__.index('planning')",
    "a moved module": "from openhtp.trace.records import Trace; assert Trace is openhtp.records.trace.Trace",
    "the package is called": "import openhtp.sweep; assert openhtp.sweep(STUDY).points",
    "a block": "import openhtp.trace, openhtp.trace.phases\nwith openhtp.trace('out.json'): pass",
}
STUDY = {"measure": "estimate", "axes": {"model": "zoo:tiny_mlp", "soc": ["SM8550"]}}


@pytest.mark.parametrize("program", OLD_NAMES.values(), ids=OLD_NAMES)
def test_old_package_names_answer_with_one_warning(program: str, tmp_path: Path) -> None:
    source = f"""
import warnings, openhtp, openhtp.sweeping, openhtp.planning, openhtp.records.trace
STUDY = {STUDY!r}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    exec(compile({program!r}, "program.py", "exec"))
(warning,) = caught
assert warning.category is DeprecationWarning, warning
assert warning.filename == "program.py", warning
assert "is openhtp." in str(warning.message), warning
"""
    subprocess.run([sys.executable, "-c", source], cwd=tmp_path, check=True, timeout=PATIENCE_S)


def test_without_the_table_of_names_the_package_says_what_it_lacks(tmp_path: Path) -> None:
    source = Path(openhtp.__file__)
    package = tmp_path / "openhtp"
    (package / "core").mkdir(parents=True)
    for name in ("__init__.py", "core/__init__.py", "core/version.py"):
        shutil.copy(source.parent / name, package / name)  # as an app frozen without data files has it
    command = [sys.executable, "-c", "import openhtp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: openhtp has no " in done.stderr
    assert "--collect-data openhtp" in done.stderr
