"""``openhtp plan``: what would these clients see on that device? Every number it prints is modelled."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from openhtp.cli._monte_carlo import monte_carlo_command
from openhtp.cli._terminal import console, errors_reported, write_json
from openhtp.plan import Advice, PlanResult, Scenario, load_scenario, optimize
from openhtp.plan import plan as run_plan
from openhtp.plan.result import ClientSummary
from openhtp.report.gantt import marks_to_svg, marks_to_text, svg_to_png
from openhtp.report.timeline import marks_to_html
from openhtp.sched.policy import policy_named

_STANDARD_OUTPUT = Path("-")
_COLUMNS = (
    "priority",
    "runs",
    "p50",
    "p99",
    "max",
    "wait mean",
    "wait max",
    "yields",
    "deadline",
    "missed",
    "busy",
)
_TIMES = _COLUMNS.index("yields")
_WIDE = 116
"""Columns that the whole table needs; a narrower terminal gets the times and the rest one below the other."""
_LARGE = 20_000
"""Scheduling events above which the terminal picture is left out: a column would stand for too many runs."""


def plan(
    scenario: Annotated[Path, typer.Argument(help="Scenario file, YAML or JSON.")],
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Write states, resource map and summary to this file (-: only that)."),
    ] = None,
    timeline: Annotated[Path | None, typer.Option(help="Write an interactive timeline (one HTML file).")] = None,
    svg: Annotated[
        Path | None, typer.Option("--picture", "--svg", help="Write a Gantt picture: SVG, or PNG by its ending.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace (chrome://tracing, Perfetto).")] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="strict, edf or fair, instead of the scenario's; several to compare: strict,fair"),
    ] = None,
    window: Annotated[
        str | None, typer.Option(help="START:END in the scenario's unit; files and pictures show only that part.")
    ] = None,
    search: Annotated[
        bool,
        typer.Option("--optimize", help="Find priorities, queue depths and a policy that hold all deadlines."),
    ] = False,
    gantt: Annotated[bool, typer.Option(help="Draw the clients in the terminal.")] = True,
    seeds: Annotated[int | None, typer.Option(help="Count misses over so many random arrivals.")] = None,
) -> None:
    """Plan a scenario on the virtual clock: latencies, waiting, yields, deadlines, utilisation (modelled)."""
    if seeds is not None:
        shows = {"timeline": timeline, "picture": svg, "trace": trace, "window": window, "optimize": search}
        monte_carlo_command(scenario, seeds, policy, json_file, of_one_run=shows)
        return
    shown = _window(window)
    advice = None
    with errors_reported():
        loaded = load_scenario(scenario)
        policies = [policy_named(name.strip()) for name in policy.split(",")] if policy else [loaded.policy]
        loaded = replace(loaded, policy=policies[0])
        if search:
            advice = optimize(loaded)
            loaded = advice.scenario
        wants_files = any(path is not None for path in (json_file, timeline, svg, trace))
        detail = wants_files or _is_small(loaded)
        if advice is not None and not detail:
            result = PlanResult(advice.run)  # it was run already, and may have taken seconds
        else:
            result = _run(loaded, detail=detail, window=shown)
        others = [_run(replace(loaded, policy=other)) for other in policies[1:]]
        _write_pictures(result, timeline=timeline, svg=svg, trace=trace)
        if json_file == _STANDARD_OUTPUT:
            typer.echo(json.dumps(_document(result, others), indent=1))
            return
        write_json(json_file, {} if json_file is None else _document(result, others))
    if advice is not None:
        _print_advice(advice)
    _print_results([result, *others], gantt=gantt)
    if advice is not None and not advice.holds:
        raise typer.Exit(1)


def _run(scenario: Scenario, *, detail: bool = False, window: tuple[float, float] | None = None) -> PlanResult:
    """Plan, with a bar for those that take longer than a moment."""
    with Bar(console=Console(stderr=True), transient=True) as bar:  # --json - owns the standard output
        task = bar.add_task(f"planning, {scenario.policy.name} policy", total=1.0)
        return run_plan(
            scenario, detail=detail, window=window, progress=lambda part: bar.update(task, completed=part)
        )


def _document(result: PlanResult, others: list[PlanResult]) -> dict[str, Any]:
    document = result.to_json()
    if others:
        document["summary"]["compared"] = {other.scenario.policy.name: other.summary() for other in others}
    return document


def _print_results(results: list[PlanResult], *, gantt: bool) -> None:
    # A pipe has no width of its own; a table cut to 80 columns would be of no use there.
    wide = console if console.is_terminal else Console(width=120)
    for result in results:
        for table in _tables(result, wide.width):
            wide.print(table)
        _print_footer(result)
    first = results[0]
    scenario = first.scenario
    for note in scenario.notes:
        console.print(f"Note: {note}.", style="dim", highlight=False, soft_wrap=True)
    if gantt and len(results) == 1 and first.run.phases is not None and first.run.events <= _LARGE:
        width = max(20, min(100, console.width - 24))
        text = marks_to_text(first.marks(), unit=scenario.unit, unit_ns=scenario.unit_ns, width=width)
        console.print(text, markup=False, highlight=False)


def _is_small(scenario: Scenario) -> bool:
    """Whether detail is cheap: no open end, or a short one."""
    return scenario.duration_ns is None or all(
        scenario.duration_ns / max(1, source.gap_ns or source.run_ns) < _LARGE for source in scenario.sources
    )


def _window(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    start, _, end = text.partition(":")
    try:
        first, last = float(start or 0), float(end)
    except ValueError:
        raise typer.BadParameter(f"--window {text!r}: expected START:END, for example 0:500") from None
    if not 0 <= first < last:
        raise typer.BadParameter(f"--window {text!r}: START must be at least 0 and below END")
    return first, last


def _write_pictures(result: PlanResult, *, timeline: Path | None, svg: Path | None, trace: Path | None) -> None:
    scenario = result.scenario
    if timeline is None and svg is None and trace is None:
        return
    marks = result.marks()
    unit, unit_ns, vtcm = scenario.unit, scenario.unit_ns, scenario.device.vtcm_bytes
    if trace is not None:
        trace.write_bytes(result.chrome_trace())
    if svg is not None:
        text = marks_to_svg(marks, title=scenario.name, unit=unit, unit_ns=unit_ns, vtcm_bytes=vtcm)
        svg.write_bytes(svg_to_png(text) if svg.suffix.lower() == ".png" else text.encode())
    if timeline is not None:
        text = marks_to_html(
            marks, title=scenario.name, unit=unit, unit_ns=unit_ns, vtcm_bytes=vtcm, lanes=result.lanes()
        )
        timeline.write_text(text, encoding="utf-8")


def _tables(result: PlanResult, width: int) -> list[Table]:
    """One table, or the times and the rest apart where a terminal is too narrow."""
    rows = {name: _cells(row) for name, row in result.clients.items()}
    if width >= _WIDE:
        return [_table(result, rows, 0, len(_COLUMNS))]
    return [_table(result, rows, 0, _TIMES), _table(result, rows, _TIMES, len(_COLUMNS))]


def _table(result: PlanResult, rows: dict[str, list[str]], first: int, end: int) -> Table:
    scenario = result.scenario
    title = f"{scenario.name}: modelled times in {scenario.unit}, {scenario.policy.name} policy"
    table = Table(title=title if not first else None, box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("client")
    for name in _COLUMNS[first:end]:
        table.add_column(name, justify="right", no_wrap=True)
    for name, cells in rows.items():
        table.add_row(name, *cells[first:end])
    return table


def _cells(row: ClientSummary) -> list[str]:
    missed = str(row.missed) if row.deadline is not None else "-"
    return [
        row.priority,
        str(row.runs),
        *(_number(value) for value in (row.p50, row.p99, row.max, row.waiting_mean, row.waiting_max)),
        str(row.yields),
        _number(row.deadline),
        f"[red]{missed}[/red]" if row.missed else missed,
        f"{row.busy:.1%}",
    ]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:,.4g}"


def _print_footer(result: PlanResult) -> None:
    used = result.run.utilisation()
    parts = ", ".join(f"{name.upper()} {value:.1%}" for name, value in used.items())
    end = result.scenario.in_unit(result.run.end_ns)
    console.print(
        f"Utilisation (modelled): {parts}, until {_number(end)} {result.scenario.unit}",
        highlight=False,
        soft_wrap=True,
    )


def _print_advice(advice: Advice) -> None:
    if advice.holds:
        console.print(f"All deadlines hold (modelled; {advice.tried} settings tried):", style="green")
    else:
        console.print(f"Not all deadlines can hold (modelled; {advice.tried} settings tried):", style="red")
    for words in advice.words:
        console.print(f"  - {words}", markup=False, highlight=False, soft_wrap=True)
