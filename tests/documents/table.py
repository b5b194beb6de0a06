"""Reads the statements: one TOML file in ``statements/`` for each page of the documentation, or part of one."""

from __future__ import annotations

import ast
import functools
import tomllib
from pathlib import Path
from typing import Literal, get_args

import msgspec

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "statements"

Verdict = Literal["same", "modelled", "differs", "not offered", "open", "does not apply", "ours"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
# Of these it can be asked whether they hold; the rest are advice, or no statements of the documents.
APPLYING: tuple[Verdict, ...] = ("same", "modelled", "differs", "not offered", "open")


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One behaviour, in our words, and how it stands here."""

    id: str
    section: str
    says: str
    verdict: Verdict
    tests: list[str] = []
    note: str = ""


class Page(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The statements of one file."""

    title: str
    document: str
    statement: list[Statement]
    name: str = ""

    def count(self, verdict: Verdict) -> int:
        """The number of statements with this verdict."""
        return sum(each.verdict == verdict for each in self.statement)


def pages(folder: Path = FOLDER) -> list[Page]:
    """All files in the order of their names, but what goes beyond the documents comes last.

    Raises:
        ValueError: A file is not of the form; the message names the file and the place in it.
    """
    paths = sorted(folder.glob("*.toml"), key=lambda path: (path.stem == "ours", path.stem))
    return [_page(path) for path in paths]


def _page(path: Path) -> Page:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(content | {"name": path.stem}, Page)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"{path.name}: {error}") from error


def exists(test: str) -> bool:
    """Whether ``tests/room/test_x.py::test_y`` is defined; the file is parsed, not imported."""
    path, _, name = test.partition("::")
    return name in _defined(ROOT / path)


@functools.cache
def _defined(path: Path) -> frozenset[str]:
    if not path.is_file():
        return frozenset()
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return frozenset(name for name in names if name.split("::")[-1].startswith("test_"))
