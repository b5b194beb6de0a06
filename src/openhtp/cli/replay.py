"""``openhtp replay``: make saved calls again, here or on another library, and compare the outputs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from openhtp.cli import _tool_options as opt
from openhtp.cli._terminal import JsonFile, TextTable, say, show, write_file, write_json
from openhtp.tools.models import library_of
from openhtp.tools.replay import ComparedOutput, ReplayResult, Tolerance, replay as make_again, source_of

_SHOWN = 20


def replay(
    recording: Annotated[Path, typer.Argument(help="The saver's folder, or the .jsonl in it.")],
    backend: opt.BackendPath = None,
    max_steps: Annotated[
        int, typer.Option("--max_steps", min=0, help="How far integers of an output may be off.")
    ] = 1,
    max_share: Annotated[
        float,
        typer.Option("--max_share", min=0.0, help="How far floats may be, in parts of the largest."),
    ] = 0.01,
    op_packages: opt.OpPackages = None,
    source: Annotated[
        Path | None, typer.Option("--source", help="Write the calls as a C program here, and make none of them.")
    ] = None,
    log_level: opt.LogLevel = None,
    json_file: JsonFile = None,
) -> None:
    """Make saved calls again. Exit status 1 if a call is answered differently, or an output is too far off."""
    with opt.tool_errors(), opt.logged(log_level):
        if source is not None:
            write_file(source, source_of(recording))
            write_json(json_file, {"source": str(source)})
            return
        tolerance = Tolerance(steps=max_steps, share=max_share)
        with opt.progress() as tell:
            packages = opt.packages_of(op_packages)
            outcome = make_again(recording, library_of(backend), tolerance, tell, packages)
        _print(outcome)
        write_json(json_file, _as_json(outcome))
    if not outcome.holds:
        raise typer.Exit(1)


def _print(outcome: ReplayResult) -> None:
    say(f"{outcome.calls} calls, {outcome.executions} executions")
    sheet = TextTable("", ("output", "executions", "elements", "equal", "worst", ""), ("",))
    for row in outcome.compared.values():
        share = 100 * row.equal / row.elements if row.elements else 100.0
        counts = str(row.executions), str(row.elements), f"{share:.2f}%"
        sheet.add(f"{row.graph}: {row.output}", *counts, _worst(row), "ok" if row.holds else "too far")
    sheet.note = "worst: integers in steps, floats in percent of the output's largest number"
    if outcome.compared:
        show(sheet)
    for text in outcome.differing[:_SHOWN]:
        say(text, style="red")
    if len(outcome.differing) > _SHOWN:
        say(f"... and {len(outcome.differing) - _SHOWN} more calls that were answered differently", style="red")


def _worst(row: ComparedOutput) -> str:
    return f"{row.worst:.0f} steps" if row.in_steps else f"{100 * row.worst:.4f}%"


def _as_json(outcome: ReplayResult) -> dict[str, Any]:
    return {
        "holds": outcome.holds,
        "calls": outcome.calls,
        "executions": outcome.executions,
        "outputs": [_row_json(row) for row in outcome.compared.values()],
        "differing": outcome.differing,
    }


def _row_json(row: ComparedOutput) -> dict[str, Any]:
    document = dataclasses.asdict(row)
    unit = "steps" if document.pop("in_steps") else "share of the largest"
    return {**document, "unit": unit}


app = opt.plain_app(replay)
