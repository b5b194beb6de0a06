"""What must hold after every event. Tests call it after each one; so does a loop in debug mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openhtp.sched.jobs import JobState, ScheduledJob
from openhtp.sched.resources import MAX_PARALLEL_GRAPHS

if TYPE_CHECKING:
    from openhtp.sched.arbiter import Arbiter
    from openhtp.sched.scheduler import Scheduler

_HOLDING = (JobState.RUNNING, JobState.YIELDING)
_ASKING = (JobState.WAITING, JobState.PAUSED)


def check(scheduler: Scheduler) -> None:
    """Assert all invariants of a scheduler."""
    for job in scheduler.jobs.values():
        core = scheduler.cores[job.client.core]
        places = (job in core.holders, any(waiter[2] is job for waiter in core.waiting))
        expected = (job.state in _HOLDING, job.state in _ASKING)
        assert places == expected, f"job {job.number} is {job.state.name} but holds, waits = {places}"
        assert (job.share is not None) == (job.state in _HOLDING)
        assert (job.token != 0) == (job.state in _HOLDING)
        first = job.client.queue[0] is job
        assert (job.state is JobState.QUEUED) == (not first) or (first and job.client.held)
    for client in scheduler.clients.values():
        sequences = [job.sequence for job in client.queue]
        assert sequences == sorted(sequences), f"client {client.number}: jobs out of order"
        assert all(scheduler.jobs.get(job.number) is job for job in client.queue)
        assert not client.gone or client.queue, f"client {client.number} is gone and has no jobs"
    for core in scheduler.cores:
        _check_core(core, scheduler)


def _check_core(core: Arbiter, scheduler: Scheduler) -> None:
    assert [waiter[:2] for waiter in core.waiting] == sorted(waiter[:2] for waiter in core.waiting)
    apps = sum(not waiter[2].client.demand.is_graph for waiter in core.waiting)
    assert core.waiting_apps == apps
    assert not core.waiting or core.holders, "the core is idle although someone waits"
    hmx = hvx = 0
    ranges: list[tuple[int, int]] = []
    for job in core.holders:
        share = job.share
        assert scheduler.jobs.get(job.number) is job, f"job {job.number} holds resources but has ended"
        assert share is not None
        assert not hmx & share.hmx, "two holders of one HMX unit"
        assert not hvx & share.hvx, "two holders of one HVX thread"
        assert share.hmx.bit_count() == share.demand.hmx
        assert share.hvx.bit_count() == share.demand.hvx
        hmx |= share.hmx
        hvx |= share.hvx
        if share.demand.vtcm:
            ranges.append((share.start, share.end))
    assert hmx < 1 << scheduler.resources.hmx
    assert hvx < 1 << scheduler.resources.hvx
    end = 0
    for low, high in sorted(ranges):
        assert end <= low < high <= scheduler.resources.vtcm_bytes, "VTCM ranges overlap or leave the VTCM"
        end = high
    _check_company(core.holders, scheduler)


def _check_company(holders: list[ScheduledJob], scheduler: Scheduler) -> None:
    device = scheduler.resources
    graphs = [job.client.demand for job in holders if job.client.demand.is_graph]
    assert len(graphs) <= (MAX_PARALLEL_GRAPHS if device.parallel_graphs else 1)
    assert len({graph.priority for graph in graphs}) <= 1
    if not device.windowing:
        assert len({job.client.demand.pd for job in holders}) <= 1, "two process domains share a core"
    if not device.sharing:
        assert sum(job.client.demand.vtcm > 0 for job in holders) <= 1
