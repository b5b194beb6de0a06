"""Executions that take a given time on the wall clock, rather than the time that computing them takes here.

An application on the NPU computes nothing that we could run: it only holds VTCM and HVX for a while. And a graph
may be given the time it would take on the chip. Both are asked to yield, stop and go on like any other job.
"""

from __future__ import annotations

import heapq

from openhtp.sched.actions import AskYield, Start
from openhtp.sched.virtual import Work

# Ends that were replaced or belong to jobs that are over are thrown away when there are many.
ENDS_KEPT = 1024


class _Run:
    """One paced job: what is left of it and when it will stop."""

    __slots__ = ("due_ns", "left_ns", "resumes", "started_ns", "step", "token", "work", "yields")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.left_ns = work.total_ns
        self.started_ns = self.due_ns = 0
        self.step = self.token = 0
        self.resumes = False
        self.yields = False


class PacedSteps:
    """Steps that end by the clock. A job's pace is its ``Work``: how long it runs, what stopping it costs."""

    def __init__(self) -> None:
        self._runs: dict[int, _Run] = {}
        self._ends: list[tuple[int, int, int]] = []  # due, job, token

    def start(self, t: int, action: Start, work: Work) -> None:
        """Begin a job, or go on with one that was paused."""
        run = self._runs.get(action.job)
        if run is None:
            run = self._runs[action.job] = _Run(work)
        run.step, run.token, run.yields = action.step, action.token, False
        run.started_ns = t + (work.restore_ns if run.resumes else 0)
        run.due_ns = run.started_ns + run.left_ns
        self._push(run.due_ns, action.job, action.token)

    def ask_yield(self, t: int, action: AskYield) -> None:
        """Stop at the next yield point, or a fixed eviction time from now, if that is before the end."""
        run = self._runs.get(action.job)
        if run is None or run.token != action.token:
            return
        work = run.work
        if work.eviction_ns is not None:
            stop = free = t + work.eviction_ns
        else:
            every = max(1, work.yield_every_ns or work.total_ns)
            stop = run.started_ns + -(-max(0, t - run.started_ns) // every) * every
            free = stop + work.save_ns + work.wake_ns
        if stop + (free - t) // 4 >= run.due_ns:
            return  # it is as good as over; clocks jitter, and stopping it would cost more than letting it end
        run.left_ns = run.due_ns - max(stop, run.started_ns)
        run.due_ns, run.yields = free, True
        self._push(free, action.job, action.token)

    def next_at(self) -> int | None:
        """When the next one ends or stops."""
        while self._ends:
            if self._counts(self._ends[0]):
                return self._ends[0][0]
            heapq.heappop(self._ends)  # replaced by an earlier stop
        return None

    def _push(self, due_ns: int, job: int, token: int) -> None:
        heapq.heappush(self._ends, (due_ns, job, token))
        if len(self._ends) > ENDS_KEPT + 2 * len(self._runs):
            self._ends = [end for end in self._ends if self._counts(end)]
            heapq.heapify(self._ends)

    def _counts(self, end: tuple[int, int, int]) -> bool:
        due, job, token = end
        run = self._runs.get(job)
        return run is not None and run.token == token and run.due_ns == due

    def pop(self) -> tuple[int, int, int, bool]:
        """The one that is due: (job, step, token, whether it only stopped). Call when ``next_at`` has come."""
        _, job, token = heapq.heappop(self._ends)
        run = self._runs[job]
        if run.yields:
            run.resumes = True
        else:
            del self._runs[job]
        return job, run.step, token, run.yields

    def hurry(self, t: int, job: int) -> None:
        """Let a job end now."""
        run = self._runs.get(job)
        if run is not None and run.due_ns > t:
            run.due_ns, run.yields = t, False
            self._push(t, job, run.token)

    def forget(self, job: int) -> None:
        """The job is over, however it ended."""
        self._runs.pop(job, None)
