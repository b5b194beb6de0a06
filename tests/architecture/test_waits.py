"""Tests wait for events: none gives up after a few seconds, which a busy machine may need for anything."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_tutorials import TUTORIALS, program_of
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
# What this file shows, and a device's silence, which an attacker of the wire does not wait out.
OTHERS = ("tests/architecture/test_waits.py", "tests/hostile/wire.py")
FILES = [
    path
    for folder in ("tests", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if str(path.relative_to(ROOT)) not in OTHERS
]
# Pages whose Python a test runs as it stands.
PAGES = [ROOT / "README.md", *TUTORIALS]
WAITS = {"wait", "join", "result", "exception", "acquire", "communicate", "settimeout", "select"}
LIMITS = {"timeout", "timeout_s"}
# In programs that a test starts, and in marks.
IN_TEXT = re.compile(r"\.(?:wait|join|result|exception)\((?:timeout=)?(\d+)\)|mark\.timeout\((\d+)\)")
SHORTEST_S, TOO_SHORT = 1, "expected none, or PATIENCE_S of tests/waiting.py"


def short(node: ast.expr) -> bool:
    """A number that is a limit (less than a second is a pause between two looks) and is soon over."""
    return (
        isinstance(node, ast.Constant)
        and type(node.value) in (int, float)
        and SHORTEST_S <= node.value < PATIENCE_S
    )


def short_waits(source: str) -> Iterator[int]:
    """Lines on which something is waited for, but not for long."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            limits = [keyword.value for keyword in node.keywords if keyword.arg in LIMITS]
            if name in WAITS and node.args:
                limits.append(node.args[-1])
            yield from (node.lineno for limit in limits if short(limit))
    for number, line in enumerate(source.splitlines(), 1):
        yield from (number for found in IN_TEXT.findall(line) if 0 < int("".join(found)) < PATIENCE_S)


@pytest.mark.parametrize("path", [*FILES, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_wait_is_soon_over(path: Path) -> None:
    source = program_of(path) if path in PAGES else path.read_text(encoding="utf-8")
    lines = sorted(set(short_waits(source)))
    assert not lines, f"{path}: lines {lines} wait for a few seconds only; {TOO_SHORT}"


@pytest.mark.parametrize(
    "source",
    [
        "done.wait(10)",
        "run.result(timeout=5)",
        "subprocess.run(c, timeout=60)",
        "s = 'e.result(10)'",
        "a.join(2.5)",
    ],
)
def test_short_waits_are_seen(source: str) -> None:
    assert list(short_waits(source))


@pytest.mark.parametrize(
    "source", ["done.wait()", "pause.wait(0.01)", "run.result(PATIENCE_S)", "run.result(600)"]
)
def test_long_ones_are_not(source: str) -> None:
    assert not list(short_waits(source))
