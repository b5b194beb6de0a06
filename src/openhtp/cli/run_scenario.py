"""``openhtp run-scenario``: a scenario for real on the emulator, beside its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openhtp.cli._config import ConfigFile, PerfProfileName, preset_of
from openhtp.cli._terminal import (
    JsonFile,
    TextTable,
    errors_reported,
    progress_console,
    say,
    show,
    write_file,
    write_json,
)
from openhtp.planning import load_scenario
from openhtp.planning.live import LiveResult, run_live
from openhtp.records.phases import Moment
from openhtp.report.chrome import marks_to_chrome
from openhtp.report.lanes import lanes_of, since_the_first, trace_to_marks
from openhtp.report.timeline import marks_to_html

_MOST_ROWS = 60


def run_scenario(
    scenario: Annotated[Path, typer.Argument(help="Scenario file, YAML or JSON.")],
    stretch: Annotated[
        float | None, typer.Option(min=1.0, help="Run this much slower than the scenario; default: enough to see.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace of the measured run.")] = None,
    timeline: Annotated[Path | None, typer.Option(help="Write an HTML timeline of the measured run.")] = None,
    perf_profile: PerfProfileName = None,
    config_file: ConfigFile = None,
    json_file: JsonFile = None,
) -> None:
    """Run a scenario with real graphs on a device process; compare planned with measured order."""
    with errors_reported():
        config = preset_of(config_file, perf_profile)
        loaded = load_scenario(scenario)
        with progress_console.status("running on the wall clock"):
            result = run_live(loaded, stretch=stretch, config=config)
        marks = trace_to_marks(result.recorded)
        if trace is not None:
            write_file(trace, marks_to_chrome(marks))
        if timeline is not None:
            page = marks_to_html(
                since_the_first(marks),
                title=f"{loaded.name}, measured",
                vtcm_bytes=loaded.device.vtcm_bytes,
                modelled=False,
                lanes=lanes_of(result.recorded.units, result.recorded.tracks),
            )
            write_file(timeline, page)
    show(_table(result))
    verdict, style = ("the same order", "green") if result.same_order else ("another order than planned", "red")
    say(f"{len(result.measured)} starts, pauses, resumes and ends: {verdict}", style)
    write_json(json_file, _as_json(result))
    if not result.same_order:
        raise typer.Exit(1)


def _table(result: LiveResult) -> TextTable:
    """Moments by their number: the n-th that was planned beside the n-th that was measured."""
    unit = result.scenario.unit
    title = f"planned (modelled) and measured (wall clock / {result.stretch:g}), in {unit}"
    sheet = TextTable(title, ("", "planned at", "what", "measured at", "what"), ("what",))
    pairs = list(zip(result.planned, result.measured, strict=False))
    for number, (planned, measured) in enumerate(pairs[:_MOST_ROWS], 1):
        sheet.add(str(number), *_cells(result, planned, 1.0), *_cells(result, measured, result.stretch))
    if len(pairs) > _MOST_ROWS:
        sheet.add("", "", f"and {len(pairs) - _MOST_ROWS} more", "", "")
    return sheet


def _cells(result: LiveResult, moment: Moment, stretch: float) -> list[str]:
    at = moment.t_ns / stretch / result.scenario.unit_ns
    return [f"{at:.1f}", f"{moment.what} {moment.client}"]


def _as_json(result: LiveResult) -> dict[str, object]:
    unit_ns = result.scenario.unit_ns

    def moments(passed: list[Moment], stretch: float) -> list[dict[str, object]]:
        return [{"t": m.t_ns / stretch / unit_ns, "what": m.what, "client": m.client} for m in passed]

    return {
        "scenario": result.scenario.name,
        "unit": result.scenario.unit,
        "stretch": result.stretch,
        "same_order": result.same_order,
        "planned": moments(result.planned, 1.0),
        "measured": moments(result.measured, result.stretch),
    }
