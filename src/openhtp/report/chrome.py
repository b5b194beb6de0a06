"""Records as Chrome trace JSON, for chrome://tracing and ui.perfetto.dev. Times there are microseconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from openhtp.core.units import US
from openhtp.trace.records import Counter, Flow, Instant, Record, Span


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


def records_to_chrome(records: Iterable[Record], *, modelled: bool = False) -> bytes:
    """Return the trace as JSON. ``modelled`` is written into it, so that nobody takes it for measured."""
    lanes = _Lanes()
    events: list[dict[str, Any]] = []
    for record in records:
        events.extend(_events(record, lanes))
    document = {
        "traceEvents": lanes.events + events,
        "displayTimeUnit": "ns",
        "otherData": {"producer": "openhtp", "times": "modelled" if modelled else "measured"},
    }
    return msgspec.json.encode(document)


def _events(record: Record, lanes: _Lanes) -> list[dict[str, Any]]:
    if isinstance(record, Span):
        event = {
            "ph": "X",
            "name": record.name,
            "cat": record.category or "span",
            "ts": record.start_ns / US,
            "dur": record.duration_ns / US,
            **lanes.place(record.group, record.lane),
        }
        return [{**event, "args": record.args} if record.args else event]
    if isinstance(record, Instant):
        event = {
            "ph": "i",
            "s": "t",
            "name": record.name,
            "cat": record.category or "instant",
            "ts": record.at_ns / US,
            **lanes.place(record.group, record.lane),
        }
        return [{**event, "args": record.args} if record.args else event]
    if isinstance(record, Counter):
        place = lanes.place(record.group, record.name)
        return [{"ph": "C", "name": record.name, "ts": record.at_ns / US, "args": record.values, **place}]
    return _flow_events(record, lanes)


def _flow_events(record: Flow, lanes: _Lanes) -> list[dict[str, Any]]:
    base = {"name": record.name, "cat": "flow", "id": record.number}
    start = lanes.place(record.from_group, record.from_lane)
    end = lanes.place(record.to_group, record.to_lane)
    return [
        {"ph": "s", **base, "ts": record.from_ns / US, **start},
        {"ph": "f", "bp": "e", **base, "ts": record.to_ns / US, **end},
    ]
