"""What ``openhtp plan`` prints: tables, the picture in the terminal, and what was found."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from openhtp.cli._terminal import console, say, say_lines, show
from openhtp.cli._text_table import TextTable
from openhtp.planning import Advice, PlanResult
from openhtp.planning.limits import Exceeded
from openhtp.planning.result import ClientSummary, side_by_side
from openhtp.report.gantt import marks_to_text

LARGE = 20_000
"""Scheduling events above which the terminal picture is left out: a column would stand for too many runs."""
_COLUMNS = (
    "client",
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
_BESIDE_PICTURE = 24


def print_results(results: Sequence[PlanResult], *, gantt: bool) -> None:
    """Tables of all plans, then their clients over time."""
    for result in results:
        show(_table(result))
        _print_footer(result)
    scenario = results[0].scenario
    for note in scenario.notes:
        say(f"Note: {note}.", "dim")
    if gantt and all(result.run.phases is not None and result.run.events <= LARGE for result in results):
        width = max(20, min(100, console.width - _BESIDE_PICTURE))
        marks, _ = side_by_side(results)
        say_lines(marks_to_text(marks, unit=scenario.unit, unit_ns=scenario.unit_ns, width=width))


def print_advice(advice: Advice) -> None:
    """What the search found."""
    if advice.holds:
        say(f"All deadlines hold (modelled; {advice.tried} settings tried):", "green")
    else:
        say(f"Not all deadlines can hold (modelled; {advice.tried} settings tried):", "red")
    for words in advice.words:
        say(f"  - {words}")


def print_exceeded(found: Sequence[Exceeded]) -> None:
    """Limits that were asked for and are not kept, or that all are."""
    if not found:
        say("all limits are kept (modelled)", "green")
    for one in found:
        say(f"limit exceeded (modelled): {one}", "red")


def _table(result: PlanResult) -> TextTable:
    scenario = result.scenario
    title = f"{scenario.name}: modelled times in {scenario.unit}, {scenario.policy.name} policy"
    sheet = TextTable(title, _COLUMNS, ("priority",))
    for name, row in result.clients.items():
        sheet.add(name, *_cells(row))
    return sheet


def _cells(row: ClientSummary) -> list[str | Text]:
    missed = str(row.missed) if row.deadline is not None else "-"
    return [
        row.priority,
        str(row.runs),
        *(_number(value) for value in (row.p50, row.p99, row.max, row.waiting_mean, row.waiting_max)),
        str(row.yields),
        _number(row.deadline),
        Text(missed, style="red" if row.missed else ""),
        f"{row.busy:.1%}",
    ]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:,.4g}"


def _print_footer(result: PlanResult) -> None:
    unit = result.scenario.unit
    for name, row in result.clients.items():
        if row.ttft_p50 is not None:
            rate = "-" if row.tokens_per_s is None else f"{row.tokens_per_s:,.1f}"
            first = f"{_number(row.ttft_p50)} {unit} (p99 {_number(row.ttft_p99)})"
            say(f"{name} (modelled): first token after {first}, then {rate} tokens/s", "bold")
    used = result.run.utilisation()
    parts = ", ".join(f"{name.upper()} {value:.1%}" for name, value in used.items())
    end = result.scenario.in_unit(result.run.end_ns)
    switched = [
        f"{name} {row.loads} times, {_number(row.loading)} {result.scenario.unit}"
        for name, row in result.clients.items()
        if row.loads
    ]
    if switched:
        say(f"Graphs loaded by switching (modelled): {'; '.join(switched)}")
    say(f"Utilisation (modelled): {parts}, until {_number(end)} {result.scenario.unit}")
