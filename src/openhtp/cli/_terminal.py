"""What all commands share: where text goes, and how errors end a command."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from openhtp.core.errors import QnnError

JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the result to this file, as JSON.")]

console = Console()


@contextlib.contextmanager
def errors_reported() -> Iterator[None]:
    """Turn an error into one red line and exit code 2; anything else is a bug and keeps its traceback."""
    try:
        yield
    except (QnnError, OSError) as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from error


def write_json(path: Path | None, value: dict[str, Any]) -> None:
    """Write a result if a file was asked for."""
    if path is not None:
        path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        console.print(f"wrote {path}", style="dim")
