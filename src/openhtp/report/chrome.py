"""Marks as Chrome trace JSON, for chrome://tracing and ui.perfetto.dev. Times there are microseconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from openhtp.core.foreign_text import to_json
from openhtp.core.units import US
from openhtp.report.lanes import Counter, Flow, Instant, Mark, TimelineSpan


class _Lanes:
    """Numbers groups and lanes in the order in which they appear; the viewer sorts by these numbers."""

    def __init__(self) -> None:
        self._groups: dict[str, int] = {}
        self._lanes: dict[tuple[str, str], int] = {}
        self.events: list[dict[str, Any]] = []

    def place(self, group: str, lane: str) -> dict[str, int]:
        pid = self._groups.get(group)
        if pid is None:
            pid = self._groups[group] = len(self._groups) + 1
            self._name("process", pid, 0, group or "openhtp", pid)
        tid = self._lanes.get((group, lane))
        if tid is None:
            tid = self._lanes[group, lane] = len(self._lanes) + 1
            self._name("thread", pid, tid, lane, tid)
        return {"pid": pid, "tid": tid}

    def _name(self, kind: str, pid: int, tid: int, name: str, order: int) -> None:
        base = {"ph": "M", "pid": pid, "tid": tid, "ts": 0}
        self.events.append({**base, "name": f"{kind}_name", "args": {"name": name}})
        self.events.append({**base, "name": f"{kind}_sort_index", "args": {"sort_index": order}})


def marks_to_chrome(marks: Iterable[Mark], *, modelled: bool = False) -> bytes:
    """Return the trace as JSON. ``modelled`` is written into it, so that nobody takes it for measured."""
    lanes = _Lanes()
    events: list[dict[str, Any]] = []
    for mark in marks:
        events.extend(_events(mark, lanes))
    document = {
        "traceEvents": lanes.events + events,
        "displayTimeUnit": "ns",
        "otherData": {"producer": "openhtp", "times": "modelled" if modelled else "measured"},
    }
    return to_json(document)


def _events(mark: Mark, lanes: _Lanes) -> list[dict[str, Any]]:
    if isinstance(mark, TimelineSpan | Instant):
        event: dict[str, Any] = {"name": mark.name, **lanes.place(mark.group, mark.lane)}
        if isinstance(mark, TimelineSpan):
            event |= {"ph": "X", "cat": mark.category or "span"}
            event |= {"ts": mark.start_ns / US, "dur": mark.duration_ns / US}
        else:
            event |= {"ph": "i", "s": "t", "cat": mark.category or "instant", "ts": mark.at_ns / US}
        return [{**event, "args": mark.args} if mark.args else event]
    if isinstance(mark, Counter):
        counted = {"name": mark.name, "ts": mark.at_ns / US, "args": mark.values}
        return [{"ph": "C", **counted, **lanes.place(mark.group, mark.name)}]
    return _flow_events(mark, lanes)


def _flow_events(mark: Flow, lanes: _Lanes) -> list[dict[str, Any]]:
    base = {"name": mark.name, "cat": "flow", "id": mark.number}
    start = lanes.place(mark.from_group, mark.from_lane)
    end = lanes.place(mark.to_group, mark.to_lane)
    return [
        {"ph": "s", **base, "ts": mark.from_ns / US, **start},
        {"ph": "f", "bp": "e", **base, "ts": mark.to_ns / US, **end},
    ]
