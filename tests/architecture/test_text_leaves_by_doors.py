"""Text that others chose leaves by a few doors, where it is made printable: terminal, logs, pictures and pages."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src/openhtp"

DOORS = {
    "cli/_terminal.py": {"Console", "sys.stderr.write", "sys.stdout.write"},  # the terminal's
    "cli/_tool_options.py": {"StreamHandler"},  # with a formatter of printable lines
    "device/__main__.py": {"StreamHandler", "basicConfig"},  # with PrintableFormatter
    "capi/logs.py": {"sys.stderr.write"},  # lines that came through runtime/objects/log.py
    "report/page.py": {"html.escape"},
}
_ANYWHERE = {"print", "echo", "secho", "StreamHandler", "FileHandler", "basicConfig", "pprint", "print_exc"}
_ON_STREAMS = {"write", "writelines", "buffer"}
_STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}


def _exits(source: str) -> set[str]:
    """What in a module shows text past the doors."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
            of = getattr(node.func, "value", None)
            bases = {getattr(base, "id", "") for base in getattr(node.func, "bases", ())}
            if name in _ANYWHERE and not (name == "print" and _is_console(of)):
                found.add(name)
            if name.endswith("Console") or "Console" in bases:
                found.add("Console")
        if isinstance(node, ast.Attribute) and node.attr in _ON_STREAMS:
            stream = node.value
            if isinstance(stream, ast.Attribute) and stream.attr in _STREAMS:
                found.add(f"sys.{stream.attr}.{node.attr}")
        if isinstance(node, ast.ImportFrom) and node.module in ("html", "xml.sax.saxutils"):
            found.add("html.escape")
        if isinstance(node, ast.Attribute) and node.attr == "escape" and getattr(node.value, "id", "") == "html":
            found.add("html.escape")
    return found


def _is_console(node: ast.AST | None) -> bool:
    """The two consoles of ``cli/_terminal.py``, by the names that they have everywhere."""
    return isinstance(node, ast.Name) and node.id in ("console", "progress_console")


def test_nothing_shows_text_past_the_doors() -> None:
    exits = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        found = _exits(path.read_text(encoding="utf-8"))
        if found:
            exits[str(path.relative_to(PACKAGE))] = found
    assert exits == DOORS


def test_ways_past_the_doors_are_found() -> None:
    assert _exits("print(name)") == {"print"}
    assert _exits("rich.print(name)") == {"print"}
    assert _exits("Console().print(name)") == {"Console", "print"}
    assert _exits("typer.echo(name)") == {"echo"}
    assert _exits("sys.stdout.write(name)") == {"sys.stdout.write"}
    assert _exits("sys.stderr.buffer.write(name)") == {"sys.stderr.buffer"}
    assert _exits("from html import escape") == {"html.escape"}
    assert _exits("logging.basicConfig()") == {"basicConfig"}
    assert _exits("console.print(name)\nself._print(name)") == set()
