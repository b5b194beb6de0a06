"""``openhtp run-scenario``: a scenario for real on the emulator, beside its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from openhtp.cli._terminal import JsonFile, console, errors_reported, write_json
from openhtp.plan import load_scenario
from openhtp.plan.live import LiveResult, run_live
from openhtp.report.chrome import marks_to_chrome
from openhtp.report.lanes import lanes_of, trace_to_marks
from openhtp.report.timeline import marks_to_html
from openhtp.trace.phases import Moment

_MOST_ROWS = 60


def run_scenario(
    scenario: Annotated[Path, typer.Argument(help="Scenario file, YAML or JSON.")],
    stretch: Annotated[
        float | None, typer.Option(min=1.0, help="Run this much slower than the scenario; default: enough to see.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace of the measured run.")] = None,
    timeline: Annotated[Path | None, typer.Option(help="Write an HTML timeline of the measured run.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Run a scenario with real graphs on a device process; compare planned with measured order."""
    with errors_reported():
        loaded = load_scenario(scenario)
        with console.status("running on the wall clock"):
            result = run_live(loaded, stretch=stretch)
        marks = trace_to_marks(result.recorded)
        if trace is not None:
            trace.write_bytes(marks_to_chrome(marks))
        if timeline is not None:
            page = marks_to_html(
                marks,
                title=f"{loaded.name}, measured",
                vtcm_bytes=loaded.device.vtcm_bytes,
                modelled=False,
                lanes=lanes_of(result.recorded.units, result.recorded.tracks),
            )
            timeline.write_text(page, encoding="utf-8")
    console.print(_table(result))
    verdict = "[green]the same order[/green]" if result.same_order else "[red]another order than planned[/red]"
    console.print(f"{len(result.measured)} starts, pauses, resumes and ends: {verdict}")
    write_json(json_file, _as_json(result))
    if not result.same_order:
        raise typer.Exit(1)


def _table(result: LiveResult) -> Table:
    unit = result.scenario.unit
    table = Table(title=f"planned (modelled) and measured (wall clock / {result.stretch:g}), in {unit}")
    for column in ("planned at", "what", "client", "measured at", "what", "client"):
        table.add_column(column, justify="right" if "at" in column and column != "what" else "left")
    pairs = list(zip(result.planned, result.measured, strict=False))
    for planned, measured in pairs[:_MOST_ROWS]:
        table.add_row(*_cells(result, planned, 1.0), *_cells(result, measured, result.stretch))
    if len(pairs) > _MOST_ROWS:
        table.caption = f"and {len(pairs) - _MOST_ROWS} more"
    return table


def _cells(result: LiveResult, moment: Moment, stretch: float) -> list[str]:
    at = moment.t_ns / stretch / result.scenario.unit_ns
    return [f"{at:.1f}", moment.what, moment.client]


def _as_json(result: LiveResult) -> dict[str, object]:
    unit_ns = result.scenario.unit_ns

    def moments(found: list[Moment], stretch: float) -> list[dict[str, object]]:
        return [{"t": m.t_ns / stretch / unit_ns, "what": m.what, "client": m.client} for m in found]

    return {
        "scenario": result.scenario.name,
        "unit": result.scenario.unit,
        "stretch": result.stretch,
        "same_order": result.same_order,
        "planned": moments(result.planned, 1.0),
        "measured": moments(result.measured, result.stretch),
    }
