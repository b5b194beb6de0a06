"""What ``openhtp run`` prints."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.text import Text

from openhtp.cli._running import RunResult, summaries
from openhtp.cli._terminal import say, show
from openhtp.cli._text_table import TextTable, figures
from openhtp.records.profile import ProfileEvent
from openhtp.runtime.objects.step_names import StepOps
from openhtp.session.options import CPU
from openhtp.session.profiling import PART
from openhtp.session.range_check import LARGEST, Overflow

_SHOWN = 12
_COLUMNS = ("part", "where", "nodes", "why not on the HTP")
_STEPS = 407  # the event under which a profile has its steps


def print_outcome(ran: RunResult, title: str) -> None:
    """All that there is to see."""
    say(title)
    if "QNNExecutionProvider" not in ran.providers:
        say("the HTP cannot take this model: all of it ran on the CPU", "yellow")
    if any(part.provider == CPU for part in ran.partition):
        show(_partition(ran))
    show(_outputs(ran))
    show(_latency(ran))
    for sheet in _profile(ran):
        show(sheet)
    if ran.order.min_sqnr is not None:
        show(_check(ran, ran.order.min_sqnr))
    if ran.order.check_range:
        _print_overflows(ran.overflows)


def as_json(ran: RunResult) -> dict[str, Any]:
    """The same for programs; JSON has no infinity, so what is exact has no SQNR."""

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    order = ran.order
    return {
        "soc": order.soc,
        "providers": ran.providers,
        "partition": [dataclasses.asdict(part) for part in ran.partition],
        "asynchronous": order.depth is not None,
        "latency_ms": {"times": "measured", **ran.latency()},
        "outputs": summaries(ran),
        "check": {
            name: {
                "sqnr_db": finite(found.sqnr_db),
                "cosine": finite(found.cosine),
                "max_error": finite(found.max_error),
                "holds": order.min_sqnr is not None and found.sqnr_db >= order.min_sqnr,
            }
            for name, found in ran.compared.items()
        },
        "overflows": [dataclasses.asdict(overflow) for overflow in ran.overflows],
        "profile": [] if ran.profile is None else msgspec.to_builtins(ran.profile.events()),
        "steps": [[list(names) for names, _ in part] for part in ran.steps],
    }


def _partition(ran: RunResult) -> TextTable:
    """One line per part on the HTP and per node that is not."""
    sheet = TextTable(f"runs in {len(ran.partition)} parts", _COLUMNS, _COLUMNS[2:])
    left = _SHOWN
    for number, part in enumerate(ran.partition, 1):
        if part.provider != CPU:
            sheet.add(str(number), "HTP", f"{len(part.nodes)} node{'s' * (len(part.nodes) > 1)}", "")
            continue
        for node in part.nodes[: max(0, left)]:
            sheet.add(str(number), "CPU", f"{node.name} ({node.op_type})", node.reason)
        left -= len(part.nodes)
    if left < 0:
        sheet.note = f"{-left} more nodes on the CPU: --json has all of them"
    return sheet


def _outputs(ran: RunResult) -> TextTable:
    """One line per output."""
    sheet = TextTable("outputs", ("name", "type and shape", "min", "mean", "max", "inf, NaN"), ("type and shape",))
    for row in summaries(ran):
        numbers = ("-" if row[key] is None else f"{row[key]:.4g}" for key in ("min", "mean", "max"))
        bad = Text(str(row["not_finite"]), style="red" if row["not_finite"] else "")
        sheet.add(row["name"], f"{row['type']}{row['shape']}", *numbers, bad)
    return sheet


def _latency(ran: RunResult) -> TextTable:
    """Times of all runs."""
    order = ran.order
    how = "one after the other" if order.depth is None else f"queued, {order.depth} deep"
    found = ran.latency()
    columns = ("runs", "min ms", "median ms", "p90 ms", "max ms", "per second")
    sheet = TextTable(f"latency, {how} (measured on this computer, wall clock)", columns)
    times = (f"{found[key]:,.3g}" for key in ("min", "p50", "p90", "max"))
    sheet.add(f"{found['runs']:.0f}", *times, f"{found['per_second']:,.1f}")
    sheet.note = f"what it would take on the chip: openhtp estimate MODEL --soc {order.soc}"
    return sheet


def _profile(ran: RunResult) -> list[TextTable]:
    """Where the time of one run went."""
    if ran.profile is None:
        return []
    events = ran.profile.events()
    parts = [event for event in events if event.type == PART]
    if not parts:
        return _profile_of("profile of one run", events, ran.steps[0])
    whole = figures("profile of one run, in parts (measured, wall clock)")
    for event in events:
        whole.add(event.name, f"{event.value:,} {event.unit}")
    found = [whole]
    for part, steps in zip(parts, ran.steps, strict=True):
        if part.events:
            found += _profile_of(part.name, part.events, steps)
    return found


def _profile_of(title: str, events: Sequence[ProfileEvent], step_ops: Sequence[StepOps]) -> list[TextTable]:
    """One graph on the HTP. What is modelled says so."""
    total = figures(f"{title} (measured, wall clock, unless modelled)")
    steps: list[tuple[int, ProfileEvent]] = []
    for event in events:
        total.add(event.name, f"{event.value:,} {event.unit}{' (modelled)' if event.modelled else ''}")
        if event.type == _STEPS:
            steps = sorted(enumerate(event.events), key=lambda step: -step[1].value)[:_SHOWN]
    slowest = TextTable("steps that take most (measured)", ("step", "us", "nodes", "from", "to"), ("from", "to"))
    for number, step in steps:
        names = step_ops[number][0] if number < len(step_ops) else ()
        ends = (names[0], names[-1] if len(names) > 1 else "") if names else ("", "")
        slowest.add(step.name, f"{step.value:,}", f"{len(names) or ''}", *ends)
    return [total, slowest] if steps else [total]


def _check(ran: RunResult, least_db: float) -> TextTable:
    """How far each output is from ONNX Runtime's."""
    sheet = TextTable(
        f"against ONNX Runtime, at least {least_db:g} dB", ("output", "SQNR dB", "cosine", "max error", "")
    )
    for name, found in ran.compared.items():
        holds = found.sqnr_db >= least_db
        verdict = Text("ok" if holds else "too far", style="green" if holds else "red")
        sheet.add(name, f"{found.sqnr_db:.1f}", f"{found.cosine:.6f}", f"{found.max_error:.4g}", verdict)
    return sheet


def _print_overflows(overflows: Sequence[Overflow]) -> None:
    """Values that become infinite on an HTP."""
    if not overflows:
        say(f"range: every value stays within the {LARGEST:,.0f} of half precision", "green")
    for overflow in overflows[:_SHOWN]:
        say(f"range: {overflow}", "red")
    if len(overflows) > _SHOWN:
        say(f"range: and {len(overflows) - _SHOWN} more", "red")
