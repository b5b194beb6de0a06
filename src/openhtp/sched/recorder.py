"""The events and actions of a scheduler as trace records: the only way from either clock into a trace."""

from __future__ import annotations

from collections.abc import Callable

from openhtp.records.trace import (
    Granted,
    JobEnded,
    Queued,
    Record,
    Released,
    TransferDirection,
    Transferred,
    YieldAsked,
)
from openhtp.sched.actions import Action, AskYield, Finish, Grant, Release
from openhtp.sched.events import Event, Submitted
from openhtp.sched.jobs import JobState, ScheduledJob
from openhtp.sched.timed import Pace

Observer = Callable[[Event, list[Action]], None]
"""Sees every event of a scheduler and what came of it: the one instrument of a device, on either clock."""


class ScheduleRecorder:
    """Observes a loop. Every record goes to ``keep``; ``work_of`` tells what a job's yields cost, if known."""

    def __init__(
        self, keep: Callable[[Record], None], work_of: Callable[[int], Pace | None] = lambda job: None
    ) -> None:
        self._keep = keep
        self._work_of = work_of
        # VTCM of the jobs that have run. A job that is in here when it is granted something was paused before.
        self._vtcm_bytes: dict[int, int] = {}

    def begin(self, jobs: list[ScheduledJob], t: int) -> None:
        """Say how things stand at ``t``, so that jobs which are under way then have a beginning too."""
        for job in jobs:
            self._keep(Queued(job.submitted_at, job.number, job.client.number, job.deadline_at))
            share = job.share
            if share is not None:
                units = (share.hmx_units, share.hvx_units, share.start, share.end - share.start)
                self._granted(Grant(job.number, job.client.core, *units), t)
            elif job.state is JobState.PAUSED:
                self._vtcm_bytes[job.number] = job.client.demand.vtcm
                self._keep(Released(t, job.number, True))

    def __call__(self, event: Event, actions: list[Action]) -> None:
        """Take one event and what came of it."""
        t = event.t
        if type(event) is Submitted:
            self._keep(Queued(t, event.job, event.client, event.deadline_at))
        for action in actions:
            kind = type(action)
            if kind is Grant:
                self._granted(action, t)  # type: ignore[arg-type]
            elif kind is Release:
                self._released(action, t)  # type: ignore[arg-type]
            elif kind is Finish:
                self._vtcm_bytes.pop(action.job, None)  # type: ignore[union-attr]
                self._keep(JobEnded(t, action.job, action.outcome))  # type: ignore[union-attr]
            elif kind is AskYield:
                self._keep(YieldAsked(t, action.job))  # type: ignore[union-attr]

    def _granted(self, grant: Grant, t: int) -> None:
        job, nbytes = grant.job, grant.vtcm_bytes
        resumed = job in self._vtcm_bytes
        self._vtcm_bytes[job] = nbytes
        self._keep(Granted(t, job, grant.core, grant.hmx, grant.hvx, grant.vtcm_start, nbytes, resumed))
        work = self._work_of(job) if resumed and nbytes else None
        if work is not None and work.moves_vtcm:
            self._keep(Transferred(t, job, TransferDirection.RESTORE, nbytes, t + work.restore_ns))

    def _released(self, release: Release, t: int) -> None:
        job = release.job
        nbytes = self._vtcm_bytes.get(job, 0)
        work = self._work_of(job) if release.paused and nbytes else None
        if work is not None and work.moves_vtcm:
            saved = t - work.wake_ns
            self._keep(Transferred(saved - work.save_ns, job, TransferDirection.SAVE, nbytes, saved))
        self._keep(Released(t, job, release.paused))
