"""Executions that take a given time on the wall clock, rather than the time that computing them takes here.

An application on the NPU computes nothing that we could run: it only holds VTCM and HVX for a while. And a graph
may be given the time it would take on the chip. Both are asked to yield, stop and go on like any other job, by the
arithmetic that plans use (``sched/timed.py``); here is only the list of what is due.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from openhtp.sched.actions import AskYield, Start
from openhtp.sched.timed import Pace, TimedRun

# Ends that were replaced or belong to jobs that are over are thrown away when there are many.
ENDS_KEPT = 1024

_End = tuple[int, int, int]
"""When, of which job, the token."""


class Due(NamedTuple):
    """A paced step that has ended, or only ``stopped``, and when its work had begun."""

    job: int
    step: int
    token: int
    stopped: bool
    began_ns: int


class PacedSteps:
    """Steps that end by the clock. A job's pace is its ``Pace``: how long it runs, what stopping it costs."""

    def __init__(self) -> None:
        self._runs: dict[int, TimedRun] = {}
        self._ends: list[_End] = []
        # The end that counts for each job under way. Earlier ones were overtaken by a yield.
        self._awaited: dict[int, _End] = {}

    def start(self, t: int, action: Start, work: Pace) -> None:
        """Begin a job's step, or go on with one that was stopped."""
        run = self._runs.get(action.job)
        if run is None:
            run = self._runs[action.job] = TimedRun(work)
        self._await((run.start(t, action.step), action.job, action.token))

    def ask_yield(self, t: int, action: AskYield) -> None:
        """Stop at the next possible point, if the job is paced and that is before its end."""
        run = self._runs.get(action.job)
        if run is not None and run.ask_yield(t):
            self._await((run.due, action.job, action.token))

    def next_at(self) -> int | None:
        """When the next one ends or stops."""
        while self._ends:
            end = self._ends[0]
            if self._awaited.get(end[1]) is end:
                return end[0]
            heapq.heappop(self._ends)
        return None

    def pop(self) -> Due:
        """The one that is due. Call when ``next_at`` has come."""
        _, job, token = heapq.heappop(self._ends)
        del self._awaited[job]
        run = self._runs[job]
        return Due(job, run.step, token, run.stops, run.started)

    def hurry(self, t: int, job: int) -> None:
        """Let a job end now."""
        end = self._awaited.get(job)
        if end is not None and end[0] > t:
            run = self._runs[job]
            run.due, run.stops = t, False
            self._await((t, job, end[2]))

    def forget(self, job: int) -> None:
        """The job is over, however it ended."""
        self._runs.pop(job, None)
        self._awaited.pop(job, None)

    def _await(self, end: _End) -> None:
        self._awaited[end[1]] = end
        heapq.heappush(self._ends, end)
        if len(self._ends) > ENDS_KEPT + 2 * len(self._awaited):
            self._ends = sorted(self._awaited.values())
