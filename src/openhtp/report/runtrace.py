"""When executions were where: acquiring, powering up, running, making way. Measured by the device.

The runtrace file counts ticks of 19.2 MHz, as the chip's timer does. On the op timeline, which is modelled, the
same spans are drawn to its scale: the time that a run computed becomes the cycles that it is modelled to take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openhtp.records.profile import RunTimes
from openhtp.records.schematic import Schematic
from openhtp.report.profile_rows import Lanes, header

TICK_HZ = 19_200_000
_EXECUTE, _ACQUIRE, _POWER, _GRAPH = "QNN DSP Execute", "VTCM Acquire", "Resource Power On", "Graph Execute"


@dataclass(frozen=True, slots=True)
class DeviceSpan:
    """A stretch of device time, in nanoseconds from when the execution was received."""

    name: str
    start_ns: int
    end_ns: int
    # How long the chip would take for it, where that is modelled.
    modelled_ns: int | None = None


def run_spans(run: RunTimes) -> list[DeviceSpan]:
    """What an execution consists of, the whole first."""
    started, finished = run.started_ns - run.received_ns, run.finished_ns - run.received_ns
    return [
        DeviceSpan(_EXECUTE, 0, finished),
        DeviceSpan(_ACQUIRE, 0, started),
        DeviceSpan(_POWER, started, started, run.power_up_ns),  # the emulated chip has nothing to power up
        DeviceSpan(_GRAPH, started, finished),
    ]


def yield_spans(run: RunTimes) -> list[DeviceSpan]:
    """Each time it made way: VTCM saved, waited for, restored."""
    found = []
    for pause in run.pauses:
        times = [time - run.received_ns for time in (pause.asked_ns, pause.released_ns)]
        times += [time - run.received_ns for time in (pause.granted_ns, pause.restored_ns)]
        asked, released, granted, restored = _ascending(times)
        found += [
            DeviceSpan("Save VTCM", asked, released),
            DeviceSpan("Re-acquire VTCM", released, granted),
            DeviceSpan("Restore VTCM", granted, restored),
        ]
    return found


def computing_ns(run: RunTimes) -> int:
    """How long it ran, without the times in which it had made way."""
    paused = sum(max(0, pause.granted_ns - pause.released_ns) for pause in run.pauses)
    return max(1, run.finished_ns - run.started_ns - paused)


def runs_to_runtrace(schematic: Schematic, runs: Sequence[RunTimes]) -> dict[str, Any]:
    """The runtrace file: all runs, in ticks from when the first was received."""
    runs = sorted(runs, key=lambda run: run.received_ns)
    core = next((op.core for op in schematic.executed), 0)
    events = [_named("process_name", 0, f"{schematic.graph} Runtraces")]
    origin = runs[0].received_ns if runs else 0
    lanes = Lanes()
    for run in runs:  # those that were queued at the same time stand side by side
        tid = lanes.place(0, run.received_ns, run.finished_ns)
        base = run.received_ns - origin
        events += [_tick_event(schematic, span, base, run, tid) for span in run_spans(run)]
    for tid in range(lanes.used(0)):
        events.append(_named("thread_name", tid, f"Core {core} Execs" + (f" ({tid + 1})" if tid else "")))
    return {"header": header("RUN_TRACE", "1.1.0"), "otherData": {"times": "measured"}, "traceEvents": events}


def _named(kind: str, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "cat": "__metadata", "name": kind, "pid": 0, "tid": tid, "ts": 0, "args": {"name": name}}


def _tick_event(schematic: Schematic, span: DeviceSpan, base_ns: int, run: RunTimes, tid: int) -> dict[str, Any]:
    start, end = (ticks(base_ns + at) for at in (span.start_ns, span.end_ns))
    us = (span.end_ns - span.start_ns) / 1000
    scale = schematic.cycles / computing_ns(run)
    cycles = [round((base_ns + at) * scale) for at in (span.start_ns, span.end_ns)]
    return {
        "ph": "X",
        "cat": "runtrace",
        "name": span.name,
        "pid": 0,
        "tid": tid,
        "ts": start,
        "dur": end - start,
        "args": {
            **modelled_time(span),
            "graph_name": schematic.graph,
            "stat_start_ticks": start,
            "stat_end_ticks": end,
            "stat_start_cycles": cycles[0],
            "stat_end_cycles": cycles[1],
            "summary_htp_frequency_ghz": scale,
            "summary_inf/s": 1e6 / us if us else None,
            "summary_time_us": us,
        },
    }


def modelled_time(span: DeviceSpan) -> dict[str, float]:
    """What is modelled of a span, for its arguments."""
    return {} if span.modelled_ns is None else {"modelled_us": span.modelled_ns / 1000}


def ticks(ns: int) -> int:
    """Nanoseconds on the chip's timer."""
    return ns * TICK_HZ // 10**9


def _ascending(times: list[int]) -> list[int]:
    for place in range(1, len(times)):
        times[place] = max(times[place], times[place - 1])
    return times
