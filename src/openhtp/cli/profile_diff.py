"""``openhtp profile-diff``: what got slower between two profiles, node by node; status 1 if anything did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from openhtp.cli._terminal import JsonFile, TextTable, errors_reported, say, show, write_json
from openhtp.report.profile_diff import Comparison, NodeChange, ProfileSide, compare, read_side


def profile_diff(
    before: Annotated[Path, typer.Argument(help="Profile log, _schematic.bin, or analysis summary (JSON).")],
    after: Annotated[Path, typer.Argument(help="The profile to compare with it, in any of these forms.")],
    threshold: Annotated[float, typer.Option(min=0, help="Percent that a node, or all, may lose.")] = 5.0,
    least: Annotated[float, typer.Option(min=0, help="Losses below this do not count (us, or cycles).")] = 0.0,
    top: Annotated[int, typer.Option(min=0, help="Nodes to show.")] = 15,
    json_file: JsonFile = None,
) -> None:
    """Compare two profiles: two runs, two chips or two versions. Cycles, and times from them, are modelled."""
    with errors_reported():
        diff = compare(read_side(before), read_side(after), threshold_percent=threshold, least=least)
        _print(diff, threshold, top)
        write_json(json_file, _as_json(diff, threshold, least))
    if not diff.holds:
        raise typer.Exit(1)


def _print(diff: Comparison, threshold: float, top: int) -> None:
    sheet = TextTable(
        f"{_side(diff.before)} -> {_side(diff.after)} ({diff.before.kind}, modelled)",
        ("node", f"before\n{diff.unit}", f"after\n{diff.unit}", "change", "%"),
    )
    for change in (diff.total, *_most(diff, top)):
        percent = change.percent
        sheet.add(
            change.node,
            _number(change.before, diff.unit),
            _number(change.after, diff.unit),
            f"{'+' if change.delta > 0 else ''}{_number(change.delta, diff.unit)}",
            "new" if change.before is None else "gone" if change.after is None else f"{percent or 0.0:+.1f}",
        )
    show(sheet)
    _print_measured(diff)
    if diff.new or diff.gone:
        say(
            f"{_together(diff.new, diff.unit)} new, {_together(diff.gone, diff.unit)} gone: renamed, added or"
            " left out, and judged by the whole only"
        )
    if diff.holds:
        say(f"nothing lost more than {threshold:g} %", "green")
        return
    nodes = f"{len(diff.slower)} nodes" if diff.slower else ""
    parts = [words for words in ("the whole" if diff.total_is_slower else "", nodes) if words]
    say(f"slower by more than {threshold:g} %: {' and '.join(parts)}", "red")


def _print_measured(diff: Comparison) -> None:
    """The measured times of both sides, wherever they ran. They are shown, and not judged."""
    before, after = diff.before.measured, diff.after.measured
    both = [name for name in before if name in after]
    if not both:
        return
    sheet = TextTable(
        "measured on the computers that ran them, mean of all runs; not judged", ("", "before us", "after us", "%")
    )
    for name in both:
        percent = 100 * (after[name] - before[name]) / before[name] if before[name] else 0.0
        sheet.add(name, f"{before[name]:,.0f}", f"{after[name]:,.0f}", f"{percent:+.1f}")
    show(sheet)


def _together(changes: Sequence[NodeChange], unit: str) -> str:
    """How many nodes there are, and how long they take."""
    work = sum(abs(change.delta) for change in changes)
    return f"{len(changes)} node{'s' * (len(changes) != 1)} ({_number(work, unit)} {unit})"


def _most(diff: Comparison, top: int) -> list[NodeChange]:
    """The nodes that changed most, either way."""
    changed = sorted((change for change in diff.changes if change.delta), key=lambda change: -abs(change.delta))
    return changed[:top]


def _side(one: ProfileSide) -> str:
    """The name of a file, with its chip, its clock and the version that wrote it."""
    clock = f"{one.clock_hz / 1e6:,.0f} MHz" if one.clock_hz else ""
    version = f"openhtp {one.version}" if one.version else ""
    details = ", ".join(word for word in (one.soc, clock, version) if word)
    return f"{one.name} ({details})" if details else one.name


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if unit == "cycles" else f"{value:,.2f}"


def _as_json(diff: Comparison, threshold: float, least: float) -> dict[str, Any]:
    def told(change: NodeChange) -> dict[str, Any]:
        return {
            "node": change.node,
            "before": change.before,
            "after": change.after,
            "delta": change.delta,
            "percent": change.percent,
        }

    def side(one: ProfileSide) -> dict[str, Any]:
        return {
            "file": one.name,
            "soc": one.soc,
            "clock_mhz": one.clock_hz / 1e6 if one.clock_hz else None,
            "version": one.version or None,
            "measured_us": dict(one.measured),
        }

    return {
        "before": side(diff.before),
        "after": side(diff.after),
        "unit": diff.unit,
        "values": f"modelled, {diff.before.kind}",
        "threshold_percent": threshold,
        "least": least,
        "holds": diff.holds,
        "total": told(diff.total),
        "slower": [told(change) for change in diff.slower],
        "changes": [told(change) for change in diff.changes],
    }
