"""Linting data as a Chrome trace: the main thread op by op, its waits, and what ran in the background."""

from __future__ import annotations

from typing import Any

from openhtp.records.profile import ProfileEvent
from openhtp.report.profile_rows import header

_WAIT, _OVERLAP, _WAIT_OVERLAP, _RESOURCES = 5001, 5002, 5003, 5004
_MAIN, _BACKGROUND = 1, 2


def lint_to_chrome(event: ProfileEvent, graph: str) -> dict[str, Any]:
    """The trace of one critical-path event. Times are cycles, though viewers label them as microseconds."""
    events: list[dict[str, Any]] = [_named("process_name", 0, graph or "graph")]
    events += [_named("thread_name", _MAIN, "Main thread"), _named("thread_name", _BACKGROUND, "Background")]
    at = 0
    for row in event.events:
        parts = {part.type: part for part in row.events}
        wait = parts[_WAIT].value if _WAIT in parts else 0
        name = row.name.removesuffix(" (cycles)")
        if wait:
            events.append(_span(f"Wait: {name}", _MAIN, at, wait, {}))
            events += _background(parts.get(_WAIT_OVERLAP), at)
            at += wait
        if row.value:
            used = parts[_RESOURCES].text if _RESOURCES in parts else ""
            events.append(_span(name, _MAIN, at, row.value, {"Resources": used}))
            events += _background(parts.get(_OVERLAP), at)
            at += row.value
    return {"header": header("OP_TRACE", "1.1.0"), "otherData": {"times": "modelled"}, "traceEvents": events}


def _background(overlap: ProfileEvent | None, at: int) -> list[dict[str, Any]]:
    if overlap is None or not overlap.value:
        return []
    names = [name.name for name in overlap.events]
    return [_span(", ".join(names), _BACKGROUND, at, overlap.value, {"Ops": names})]


def _span(name: str, tid: int, at: int, cycles: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "cat": "lint", "name": name, "pid": 0, "tid": tid, "ts": at, "dur": cycles, "args": args}


def _named(kind: str, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "cat": "__metadata", "name": kind, "pid": 0, "tid": tid, "ts": 0, "args": {"name": name}}
