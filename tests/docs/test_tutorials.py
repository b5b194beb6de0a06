"""Tutorials are true: their Python runs as it stands, and the commands they show exist with those options."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer
from tests.waiting import PATIENCE_S

from openhtp.cli.main import app

ROOT = Path(__file__).parents[2]
TUTORIALS = [
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    ROOT / "docs" / "profiling.md",
    ROOT / "docs" / "tools.md",
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def program_of(page: Path) -> str:
    """All Python of a page as one program whose line numbers are the page's, so that a traceback leads there."""
    lines, inside = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = line.startswith("```")
        inside = line == "```python" if fence else inside
        lines.append(line if inside and not fence else "")
    return "\n".join(lines)


# Pages that need a package which is not ours to bring.
MARKS = {"genie": [pytest.mark.vendor]}


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.stem, marks=MARKS.get(page.stem, [])) for page in TUTORIALS]
)
def test_the_python_of_a_tutorial_runs(page: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    program = tmp_path / f"tutorial_{page.stem}.py"
    program.write_text(program_of(page), encoding="utf-8")
    command = [sys.executable, "-W", "error::ResourceWarning", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=tmp_path)
    assert done.returncode == 0, f"{page}: {done.stderr}"


def test_every_tutorial_asserts_something() -> None:
    assert [page.stem for page in TUTORIALS if "assert " not in program_of(page)] == []


@pytest.mark.parametrize(
    "line",
    [
        line.removeprefix("$ ")
        for page in TUTORIALS
        for block in blocks(page, "console")
        for line in block.splitlines()
        if line.startswith("$ ")
    ],
)
def test_the_commands_of_tutorials_exist(line: str) -> None:
    words = shlex.split(line)
    assert words.pop(0) == "openhtp"
    command: click.Command = typer.main.get_command(app)
    context = click.Context(command)
    while isinstance(command, click.Group) or hasattr(command, "get_command"):
        found = command.get_command(context, words[0])  # type: ignore[attr-defined]
        assert found is not None, f"there is no command {words[0]!r}"
        words.pop(0)
        command, context = found, click.Context(found)
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert [word for word in words if word.startswith("--") and word not in known] == []
    for word in words:
        if word.startswith("examples/"):
            assert (ROOT / word).exists()
