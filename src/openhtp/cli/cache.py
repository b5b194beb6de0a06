"""``openhtp cache``: the prepared models that are kept for the next start."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from openhtp.cli._terminal import JsonFile, TextTable, errors_reported, say, show, write_json
from openhtp.core.errors import InvalidArgument
from openhtp.core.model_store import VARIABLE, ModelStore, user_folder, user_store
from openhtp.core.units import bytes_in_words

app = typer.Typer(
    help="Prepared models that are kept: show, clear, limit.", no_args_is_help=True, add_completion=False
)


@app.command("show")
def show_models(json_file: JsonFile = None) -> None:
    """List the models that are kept, the most recently used first, with their size and the limit."""
    with errors_reported():
        store = _store()
        rows, limit = store.models(), store.limit
        if rows:
            sheet = TextTable(f"prepared models in {store.folder}", ("model", "kind", "size", "used"), ("kind",))
            for row in rows:
                sheet.add(row.title, row.kind, bytes_in_words(row.nbytes), _ago(row.used_s))
            show(sheet)
        total = sum(row.nbytes for row in rows)
        say(f"{len(rows)} models, {bytes_in_words(total)} of at most {bytes_in_words(limit)}")
        write_json(
            json_file,
            {
                "folder": str(store.folder),
                "limit_bytes": limit,
                "bytes": total,
                "models": [
                    {"title": row.title, "kind": row.kind, "bytes": row.nbytes, "file": row.path.name}
                    for row in rows
                ],
            },
        )


@app.command()
def clear() -> None:
    """Remove all models that are kept; the next start of each prepares it anew."""
    with errors_reported():
        say(f"removed {bytes_in_words(_store().clear())}")


@app.command()
def limit(
    size: Annotated[
        str | None, typer.Argument(help="Such as 2GB or 500MB; without it, the limit is shown.")
    ] = None,
) -> None:
    """Show or set the limit of all models together; the least recently used are removed when there is no room."""
    with errors_reported():
        store = _store()
        if size is not None:
            # Only here: planning of memory has the reader of sizes, and takes a while to load.
            from openhtp.memory.planning import size_in_bytes

            store.set_limit(size_in_bytes(size, "the limit"))
        say(f"{bytes_in_words(store.limit)} at most, {bytes_in_words(store.nbytes)} used")


def _store() -> ModelStore:
    problems: list[str] = []
    store = user_store(problems.append)
    if store is None:
        why = problems[0] if problems else f"the cache is switched off by {VARIABLE}"
        raise InvalidArgument(f"{why}; unset {VARIABLE}, or make {str(user_folder())!r} a folder of yours")
    return store


def _ago(used_s: float) -> str:
    age_s = max(0.0, time.time() - used_s)
    for unit_s, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if age_s >= unit_s:
            return f"{age_s / unit_s:.0f} {name} ago"
    return "just now"
