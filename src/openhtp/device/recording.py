"""What happened on the device, kept while recording is on: the source of timelines and Chrome traces."""

from __future__ import annotations

from typing import Any

import msgspec

from openhtp.sched.actions import Grant, Outcome, Release

# About 100 MB; a recording that was forgotten must not fill the machine.
MAX_EVENTS = 1_000_000


class Recording:
    """A bounded list of plain tuples ``(kind, t, job, ...)``, cheap to add to on the hot path."""

    def __init__(self) -> None:
        self.enabled = False
        self._events: list[tuple[Any, ...]] = []
        self._graphs: dict[int, dict[str, object]] = {}
        self._dropped = 0

    def name_graph(self, number: int, name: str, session: int, priority: int) -> None:
        """Remember what a graph is called; kept even while recording is off."""
        self._graphs[number] = {"name": name, "session": session, "priority": priority}

    def submitted(self, job: int, graph: int, t: int) -> None:
        """A job was queued."""
        self._add(("submitted", t, job, graph))

    def granted(self, action: Grant, t: int) -> None:
        """A job got its resources."""
        self._add(("granted", t, action.job, action.hmx, action.hvx, action.vtcm_start, action.vtcm_bytes))

    def step(self, job: int, step: int, start_ns: int, end_ns: int) -> None:
        """A step was computed."""
        self._add(("step", start_ns, job, step, end_ns))

    def released(self, action: Release, t: int) -> None:
        """A job gave its resources back."""
        self._add(("released", t, action.job, action.paused))

    def finished(self, job: int, outcome: Outcome, t: int) -> None:
        """A job is over."""
        self._add(("finished", t, job, outcome.value))

    def take(self) -> bytes:
        """Encode all that was recorded, and start anew."""
        data = msgspec.msgpack.encode({"graphs": self._graphs, "events": self._events, "dropped": self._dropped})
        self._events = []
        self._dropped = 0
        return data

    def _add(self, event: tuple[Any, ...]) -> None:
        if len(self._events) < MAX_EVENTS:
            self._events.append(event)
        else:
            self._dropped += 1
