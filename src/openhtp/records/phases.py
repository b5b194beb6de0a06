"""The meaning of records: when each job ran, waited or was paused, and what it held. Only this file derives it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from openhtp.core.enumerations import Outcome
from openhtp.records.trace import (
    ClocksChanged,
    Granted,
    JobEnded,
    Queued,
    Record,
    Released,
    Stepped,
    Trace,
    Transferred,
    YieldAsked,
)


class Phase(enum.Enum):
    """The activity of a client or a job."""

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
    grant: Granted | None = None


class EndedJob(Struct, frozen=True, gc=False):
    """How one job went."""

    client: int
    job: int
    submitted_ns: int
    ended_ns: int
    outcome: Outcome
    deadline_ns: int | None = None

    @property
    def missed(self) -> bool:
        """Whether it had a deadline and was not done by then."""
        if self.deadline_ns is None:
            return False
        return self.ended_ns > self.deadline_ns or self.outcome is not Outcome.DONE


class Eviction(Struct, frozen=True, gc=False):
    """A holder was asked to yield."""

    client: int
    job: int
    asked_ns: int


class Moment(Struct, frozen=True, gc=False, order=True):
    """A turning point of a job: ``start``, ``pause``, ``resume`` or ``end``."""

    t_ns: int
    what: str
    client: str


class _Open(Struct, gc=False):
    """A job that is under way."""

    client: int
    submitted: int
    deadline: int | None
    since: int
    phase: Phase = Phase.WAITING
    grant: Granted | None = None
    core: int = 0


class Phases:
    """Takes records one by one; call ``close`` at the end of time for jobs that are still under way.

    With ``first_ns`` and ``last_ns`` it keeps only what overlaps that window, and cuts intervals at its edges,
    so that a long run needs no more memory than the part one wants to look at.
    """

    def __init__(self, first_ns: int = 0, last_ns: int | None = None) -> None:
        self.intervals: list[Interval] = []
        self.ended: list[EndedJob] = []
        self.evictions: list[Eviction] = []
        # With the client, and for a transfer the core, that the record itself does not name.
        self.steps: list[tuple[int, Stepped]] = []
        self.transfers: list[tuple[int, int, Transferred]] = []
        self._clocks: dict[int, list[ClocksChanged]] = {}
        self._closed_ns = 0
        self.first_ns = first_ns
        self.last_ns = last_ns
        self._open: dict[int, _Open] = {}
        self._read: dict[type, Callable[[_Open, Any], None]] = {
            Granted: self._granted,
            Released: self._released,
            JobEnded: self._ended,
            YieldAsked: self._yield_asked,
            Stepped: self._stepped,
            Transferred: self._transferred,
        }

    def add(self, record: Record) -> None:
        """Take one record. One of a job that was never queued here says nothing: its beginning was dropped."""
        if type(record) is Queued:
            self._open[record.job] = _Open(record.client, record.t, record.deadline_at, record.t)
            return
        if isinstance(record, ClocksChanged):
            self._clocks.setdefault(record.core, []).append(record)
            return
        job = self._open.get(record.job)
        if job is not None:
            self._read[type(record)](job, record)

    def close(self, t: int) -> None:
        """Cut all open intervals at ``t``; the jobs stay unfinished."""
        self._closed_ns = t
        for number, job in self._open.items():
            self._change(number, job, job.phase, t, job.grant)

    def clock_times(self) -> list[tuple[ClocksChanged, int, int]]:
        """Which clocks each core had, from when to when; up to where it was closed."""
        spans = []
        last = self._closed_ns if self.last_ns is None else min(self._closed_ns, self.last_ns)
        for changes in self._clocks.values():
            changes.sort(key=lambda change: change.t)
            ends = [*(change.t for change in changes[1:]), last]
            for change, end in zip(changes, ends, strict=True):
                start, end = max(change.t, self.first_ns), min(end, last)
                if start < end:
                    spans.append((change, start, end))
        return spans

    def _granted(self, job: _Open, record: Granted) -> None:
        job.core = record.core
        self._change(record.job, job, Phase.RUNNING, record.t, record)

    def _released(self, job: _Open, record: Released) -> None:
        if record.paused:
            self._change(record.job, job, Phase.PAUSED, record.t, None)

    def _ended(self, job: _Open, record: JobEnded) -> None:
        self._change(record.job, job, job.phase, record.t, None)
        del self._open[record.job]
        if self._sees(job.submitted, record.t):
            self.ended.append(
                EndedJob(job.client, record.job, job.submitted, record.t, record.outcome, job.deadline)
            )

    def _yield_asked(self, job: _Open, record: YieldAsked) -> None:
        if self._sees(record.t, record.t + 1):
            self.evictions.append(Eviction(job.client, record.job, record.t))

    def _stepped(self, job: _Open, record: Stepped) -> None:
        if self._sees(record.t, record.end):
            self.steps.append((job.client, record))

    def _transferred(self, job: _Open, record: Transferred) -> None:
        if self._sees(record.t, record.end):
            self.transfers.append((job.client, job.core, record))

    def _sees(self, start_ns: int, end_ns: int) -> bool:
        """Whether [start_ns, end_ns) touches the window; a moment counts as well."""
        begins_in_time = self.last_ns is None or start_ns < self.last_ns
        return begins_in_time and (end_ns > self.first_ns or start_ns == end_ns == self.first_ns)

    def _change(self, number: int, job: _Open, phase: Phase, t: int, grant: Granted | None) -> None:
        if t > job.since and self._sees(job.since, t):
            start = max(job.since, self.first_ns)
            end = t if self.last_ns is None else min(t, self.last_ns)
            self.intervals.append(Interval(job.client, number, job.phase, start, end, job.grant))
        job.phase = phase
        job.since = t
        job.grant = grant


def phases_of(trace: Trace) -> Phases:
    """The phases of a whole recording; what was under way at its end is cut there."""
    phases = Phases()
    last = 0
    for record in trace.records:
        phases.add(record)
        last = max(last, record.t)
    phases.close(last)
    return phases


def client_phases(intervals: Iterable[Interval]) -> dict[int, list[Interval]]:
    """Per client, without overlap: running before paused before waiting, equal neighbours merged.

    A client with several jobs in its queue runs one and lets the others wait; it counts as running then.
    """
    by_client: dict[int, list[Interval]] = {}
    for interval in intervals:
        by_client.setdefault(interval.client, []).append(interval)
    return {client: _flatten(client, of_client) for client, of_client in by_client.items()}


def moments(phases: Phases, names: Callable[[int], str]) -> list[Moment]:
    """Starts, pauses, resumes and ends, in order of time; ``names`` tells what a client is called."""
    turning_points = []
    for interval in phases.intervals:
        if interval.grant is not None:
            what = "resume" if interval.grant.resumed else "start"
            turning_points.append(Moment(interval.start_ns, what, names(interval.client)))
        elif interval.phase is Phase.PAUSED:
            turning_points.append(Moment(interval.start_ns, "pause", names(interval.client)))
    turning_points += [Moment(job.ended_ns, "end", names(job.client)) for job in phases.ended]
    return sorted(turning_points)


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
