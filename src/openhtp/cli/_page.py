"""The tables of a command as a page: one file, no network, light and dark."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from openhtp.cli._sheet import Sheet
from openhtp.cli._terminal import write_file

HtmlFile = Annotated[Path | None, typer.Option("--html", help="Write the tables as a self-contained page.")]

_WIDE = 200
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 110rem; padding: 0 1rem; }}
pre {{ font: 13px/1.45 ui-monospace, monospace; overflow-x: auto; }}
p {{ opacity: 0.75; }}
</style></head><body>
<h1>{title}</h1>
{tables}
{notes}
</body></html>
"""


def write_page(path: Path | None, title: str, sheets: Sequence[Sheet], notes: Sequence[str]) -> None:
    """Write tables and notes to a file, if one is asked for."""
    if path is None:
        return
    console = Console(record=True, file=io.StringIO(), width=_WIDE)
    for sheet in sheets:
        console.print(sheet.fitted(console))
    tables = f"<pre>{html.escape(console.export_text())}</pre>"
    text = "\n".join(f"<p>{html.escape(note)}</p>" for note in notes)
    write_file(path, _PAGE.format(title=html.escape(title), tables=tables, notes=text))
