"""The tables of ``openhtp bench preempt``, of urgent graphs in other measurements, and of their goals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from openhtp.bench.interruption import InterruptResult
from openhtp.bench.preemption import PreemptResult, UrgentRow
from openhtp.bench.quiet import MeasuredGoal
from openhtp.cli._terminal import TextTable, figures
from openhtp.core.errors import BadModel, InvalidArgument
from openhtp.core.files import read_file

_MOST_BYTES = 2 << 30
# The project's documents promise this for every network that is long enough to be cut.
PROMISED = 0.07


def network_files(folder: Path) -> dict[str, bytes]:
    """The ONNX files of a folder by name."""
    paths = sorted(folder.glob("*.onnx"))
    if not paths:
        raise InvalidArgument(
            f"{folder} has no .onnx files; expected networks to interrupt. From a checkout,"
            " tools/bench_networks.py writes some from PyPI packages"
        )
    return {path.stem: read_file(path, most=_MOST_BYTES, what="an ONNX model", error=BadModel) for path in paths}


def interruption_sheet(result: InterruptResult) -> TextTable:
    """One row for each network; shares above what is promised stand out."""
    columns = (
        "network",
        "precision",
        "run",
        "steps",
        "longest step",
        "urgent p99",
        "abort p99",
        "cost",
        "samples",
    )
    title = "Interrupting networks: shares of the run (measured, wall clock)"
    sheet = TextTable(title, columns, ("precision",))
    for row in result.rows:
        shares = (row.longest_step_share, row.urgent_share_p99, row.abort_share_p99)
        sheet.add(
            row.network,
            row.precision,
            f"{row.latency_ms:,.1f} ms",
            str(row.steps),
            *(Text(f"{share:.1%}", style="" if share <= PROMISED else "yellow") for share in shares),
            f"{row.yield_points_cost:+.1%}",
            f"{row.samples}{' disturbed' if row.disturbed else ''}",
        )
    within = sum(max(row.urgent_share_p99, row.abort_share_p99) <= PROMISED for row in result.rows)
    sheet.note = f"{within} of {len(result.rows)} let go within {PROMISED:.0%} of their run."
    return sheet


def preemption_sheet(result: PreemptResult) -> TextTable:
    """The figures of one network."""
    table = figures(f"pre-emption of {result.network} (measured, wall clock)")
    table.add("one run of the long graph, undisturbed", f"{result.latency_ms:.2f} ms")
    table.add("steps (a yield point after each)", str(result.steps))
    longest = f"{result.longest_step_share:.1%} of the long run, p99 {result.longest_step_share_p99:.1%}"
    table.add("  the longest of them", longest)
    table.add("submit to start of the urgent graph, p50", f"{result.wait_ms_p50:.2f} ms")
    table.add("  p99", f"{result.wait_ms_p99:.2f} ms ({result.wait_share_p99:.1%} of the long run)")
    table.add("  max", f"{result.wait_ms_max:.2f} ms")
    table.add("  p99 of all runs, disturbed or not", f"{result.wait_share_p99_all:.1%} of the long run")
    left_out = result.samples_all - result.samples
    table.add("runs left out: the machine was taken away", f"{left_out} of {result.samples_all}")
    table.add("runs that were pre-empted", f"{result.preempted} of {result.samples}")
    table.add("cost of yield points to the long graph alone", f"{result.yield_points_cost:+.1%}")
    return table


def urgent_sheet(rows: Sequence[UrgentRow], network: str, long_ms: float) -> TextTable:
    """How long an urgent graph took beside a long network."""
    title = f"an urgent graph beside {network}, {long_ms:.1f} ms alone (measured, parts of the long run)"
    columns = ("priorities", "median\n%", "p99\n%", "p99, disturbed\nones too, %", "samples", "disturbed")
    sheet = TextTable(title, columns)
    for row in rows:
        shares = (row.median_share, row.p99_share, row.p99_share_all)
        sheet.add(row.what, *(f"{share:.1%}" for share in shares), str(row.samples), str(row.disturbed))
    return sheet


def goals_sheet(goals: Sequence[MeasuredGoal]) -> TextTable:
    """The goals, and the figures that were reached."""
    sheet = TextTable(
        "goals (ratio: part of what is allowed)", ("goal", "unit", "measured", "at most", "ratio", "")
    )
    for goal in goals:
        numbers = (f"{goal.measured:.1f}", f"{goal.most:g}", f"{goal.ratio:.2f}")
        sheet.add(goal.what, goal.unit, *numbers, "missed" if goal.ratio > 1 else "reached")
    return sheet
