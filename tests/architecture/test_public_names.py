"""The names of ``openhtp``: one table, the same for type checkers, and old package names that still answer."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import openhtp
from tests.waiting import PATIENCE_S


def _names_for_checkers() -> dict[str, set[str]]:
    """Names by module in the block that only type checkers read."""
    tree = ast.parse(Path(openhtp.__file__).read_text(encoding="utf-8"))
    (block,) = (
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    names: dict[str, set[str]] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        assert node.module is not None
        for alias in node.names:
            assert alias.asname == alias.name, (
                f"{alias.name} is not exported: write `{alias.name} as {alias.name}`"
            )
            names.setdefault(node.module, set()).add(alias.name)
    return names


def test_type_checkers_read_the_table() -> None:
    table = {module: set(names) for module, names in openhtp._NAMES_OF.items()}
    assert _names_for_checkers() == table | {"openhtp": set(openhtp._PACKAGES)}


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
