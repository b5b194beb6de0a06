"""What happened, in intervals: who ran, waited or was paused when, and who held which unit.

Built from the stream of events and actions, live or on the virtual clock. Knows jobs and clients by number.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from msgspec import Struct

from openhtp.sched.actions import Action, AskYield, Finish, Grant, Outcome, Release
from openhtp.sched.events import Event, Submitted


class Phase(enum.Enum):
    """What a client or a job is doing."""

    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"


class Interval(Struct, frozen=True, gc=False):
    """One phase of one job, [start_ns, end_ns). ``grant`` tells what it held while it ran."""

    client: int
    job: int
    phase: Phase
    start_ns: int
    end_ns: int
    grant: Grant | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How one job went."""

    client: int
    job: int
    submitted_ns: int
    ended_ns: int
    outcome: Outcome


class _Open:
    """A job that is under way."""

    __slots__ = ("client", "grant", "phase", "since", "submitted")

    def __init__(self, client: int, t: int) -> None:
        self.client = client
        self.submitted = t
        self.since = t
        self.phase = Phase.WAITING
        self.grant: Grant | None = None


@dataclass(frozen=True, slots=True)
class Eviction:
    """A holder was asked to yield."""

    client: int
    job: int
    asked_ns: int


class History:
    """An observer that keeps every interval; call ``close`` at the end of time for those still open.

    With ``first_ns`` and ``last_ns`` it keeps only what overlaps that window, and cuts intervals at its edges,
    so that a long run needs no more memory than the part one wants to look at.
    """

    def __init__(self, first_ns: int = 0, last_ns: int | None = None) -> None:
        self.intervals: list[Interval] = []
        self.ended: list[Ended] = []
        self.evictions: list[Eviction] = []
        self.first_ns = first_ns
        self.last_ns = last_ns
        self._open: dict[int, _Open] = {}

    def __call__(self, event: Event, actions: list[Action]) -> None:
        """Take one event and its actions."""
        t = event.t
        if type(event) is Submitted:
            self._open[event.job] = _Open(event.client, t)
        for action in actions:
            if type(action) is Grant:
                self._change(action.job, Phase.RUNNING, t, action)
            elif type(action) is Release:
                if action.paused:
                    self._change(action.job, Phase.PAUSED, t, None)
            elif type(action) is Finish:
                job = self._open[action.job]
                self._change(action.job, job.phase, t, None)
                del self._open[action.job]
                if self._sees(job.submitted, t):
                    self.ended.append(Ended(job.client, action.job, job.submitted, t, action.outcome))
            elif type(action) is AskYield and self._sees(t, t + 1):
                self.evictions.append(Eviction(self._open[action.job].client, action.job, t))

    def close(self, t: int) -> None:
        """Cut all open intervals at ``t``; the jobs stay unfinished."""
        for number in list(self._open):
            job = self._open[number]
            self._change(number, job.phase, t, job.grant)

    def _sees(self, start_ns: int, end_ns: int) -> bool:
        """Whether [start_ns, end_ns) touches the window; a moment counts as well."""
        begins_in_time = self.last_ns is None or start_ns < self.last_ns
        return begins_in_time and (end_ns > self.first_ns or start_ns == end_ns == self.first_ns)

    def _change(self, number: int, phase: Phase, t: int, grant: Grant | None) -> None:
        job = self._open[number]
        if t > job.since and self._sees(job.since, t):
            start = max(job.since, self.first_ns)
            end = t if self.last_ns is None else min(t, self.last_ns)
            self.intervals.append(Interval(job.client, number, job.phase, start, end, job.grant))
        job.phase = phase
        job.since = t
        job.grant = grant


def client_phases(intervals: list[Interval]) -> dict[int, list[Interval]]:
    """Per client, without overlap: running before paused before waiting, equal neighbours merged.

    A client with several jobs in its queue runs one and lets the others wait; it counts as running then.
    """
    by_client: dict[int, list[Interval]] = {}
    for interval in intervals:
        by_client.setdefault(interval.client, []).append(interval)
    return {client: _flatten(client, of_client) for client, of_client in by_client.items()}


_ORDER = (Phase.RUNNING, Phase.PAUSED, Phase.WAITING)


def _flatten(client: int, intervals: list[Interval]) -> list[Interval]:
    """Sweep over the edges, counting how many jobs are in each phase."""
    edges: list[tuple[int, Phase, int]] = []
    for interval in intervals:
        edges.append((interval.start_ns, interval.phase, 1))
        edges.append((interval.end_ns, interval.phase, -1))
    edges.sort(key=lambda edge: edge[0])
    counts = dict.fromkeys(_ORDER, 0)
    flat: list[Interval] = []
    index = 0
    while index < len(edges):
        t = edges[index][0]
        while index < len(edges) and edges[index][0] == t:
            counts[edges[index][1]] += edges[index][2]
            index += 1
        phase = next((phase for phase in _ORDER if counts[phase]), None)
        if phase is None:
            continue
        end = edges[index][0]
        if flat and flat[-1].phase is phase and flat[-1].end_ns == t:
            flat[-1] = Interval(client, 0, phase, flat[-1].start_ns, end)
        else:
            flat.append(Interval(client, 0, phase, t, end))
    return flat
