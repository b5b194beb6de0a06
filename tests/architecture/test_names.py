"""One word, one thing: class names are unique, objects keep their private fields to themselves."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "openhtp"
TREES = {path.relative_to(SOURCE): ast.parse(path.read_text("utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
# Names that the documents give to what a user holds; a level below may have its own.
SHARED_WITH_THE_DOCUMENTS = {"Graph", "Context", "Device", "Tensor", "Mem"}
MOST_FILES = 560
MOST_PRIVATE_ACCESSES = 20
# Names that say how a value came here, and not what it is.
EMPTY_NAMES = {"found", "given", "got", "held", "made", "taken"}
MOST_EMPTY_NAMES = 60


def test_every_class_has_a_name_of_its_own() -> None:
    homes = defaultdict(set)
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(str(path))
    shared = {name: sorted(paths) for name, paths in homes.items() if len(paths) > 1}
    assert set(shared) <= SHARED_WITH_THE_DOCUMENTS, shared


def test_objects_are_finished_where_they_are_made() -> None:
    """Counts uses of ``other._name`` where nothing of that name is defined in the same module."""
    counted = Counter({str(path): foreign_private_names(tree) for path, tree in TREES.items()})
    assert counted.total() <= MOST_PRIVATE_ACCESSES, +counted


def foreign_private_names(tree: ast.Module) -> int:
    own = set()
    used = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            own.add(node.value)  # slots, and names of ctypes fields
        elif isinstance(node, ast.Attribute):
            is_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if is_self and isinstance(node.ctx, ast.Store):
                own.add(node.attr)
            elif not is_self and node.attr.startswith("_") and not node.attr.startswith("__"):
                used.append(node.attr)
    return sum(name not in own for name in used)


def test_locals_say_what_they_hold() -> None:
    used = Counter({str(path): uses_of_names(tree, EMPTY_NAMES) for path, tree in TREES.items()})
    assert used.total() <= MOST_EMPTY_NAMES, +used


def uses_of_names(tree: ast.Module, names: set[str]) -> int:
    variables = (node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    arguments = (node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))
    return sum(name in names for name in (*variables, *arguments))


def test_empty_names_are_counted_as_variables_and_as_arguments() -> None:
    assert uses_of_names(ast.parse("def f(given):\n    found = given.held\n    return found"), EMPTY_NAMES) == 4


def test_the_package_is_not_a_drawer_of_files() -> None:
    assert len(TREES) < MOST_FILES


def test_the_page_of_words_is_what_its_tool_writes() -> None:
    command = [sys.executable, str(ROOT / "tools" / "gen_vocabulary.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
