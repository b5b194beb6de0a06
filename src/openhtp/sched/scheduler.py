"""The scheduler: one door, ``handle(event) -> actions``. The same object runs live and on the virtual clock.

Events bring the time, and the scheduler never asks for it; it starts no threads and remembers no wall clock, so a
log of its events replayed into a fresh one gives the same actions. Which job runs on what is decided by one
``Arbiter`` per core; this file keeps clients, jobs, timeouts and endings.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from openhtp.core.errors import InternalError, InvalidArgument, InvalidHandle, NameClash
from openhtp.sched.actions import Action, ArmTimer, Finish, Outcome, Refuse, Start
from openhtp.sched.arbiter import Arbiter
from openhtp.sched.events import (
    AbortRequested,
    ClientAdded,
    ClientExpelled,
    ClientRemoved,
    ContextPriorityChanged,
    Event,
    HoldChanged,
    PriorityChanged,
    StepDone,
    StepsFound,
    StepYielded,
    Submitted,
    ThreadsChanged,
    TimerFired,
)
from openhtp.sched.jobs import JobState, ScheduledJob, SchedulerClient
from openhtp.sched.policy import STRICT, Policy
from openhtp.sched.resources import MAX_PARALLEL_GRAPHS, Demand, DeviceResources, place, priority_on, verify_demand

_DONE = Outcome.DONE
_RUNNING = JobState.RUNNING
_YIELDING = JobState.YIELDING
_QUEUED = JobState.QUEUED
_WAITING = JobState.WAITING
_PAUSED = JobState.PAUSED
_ENDED = JobState.ENDED


class Scheduler:
    """Decides which job of which client runs on what, and when one is asked to yield.

    >>> s = Scheduler(DeviceResources(hvx=1))
    >>> s.handle(ClientAdded(t=0, client=1, priority=0))
    []
    >>> s.handle(ClientAdded(t=0, client=2, priority=200))
    []
    >>> [type(a).__name__ for a in s.handle(Submitted(t=0, job=1, client=1, steps=2))]
    ['Grant', 'Start']
    >>> s.handle(Submitted(t=1, job=2, client=2))
    [AskYield(job=1, token=1)]
    >>> [type(a).__name__ for a in s.handle(StepDone(t=5, job=1, token=1))]
    ['Release', 'Grant', 'Start']

    An event that is refused (unknown client, job number used twice, a client larger than the device) raises a
    ``QnnError`` and changes nothing.
    """

    def __init__(self, resources: DeviceResources, policy: Policy = STRICT) -> None:
        self.resources = resources
        self.policy = policy
        self.now = 0
        self.clients: dict[int, SchedulerClient] = {}
        self.jobs: dict[int, ScheduledJob] = {}
        next_token = count(1).__next__
        self.cores = tuple(Arbiter(core, resources, next_token) for core in range(resources.cores))
        self._next_token = next_token
        self._next_sequence = count(1).__next__
        self._rank = policy.rank
        self._handlers: dict[type, Callable[[Any, list[Action]], None]] = {
            ClientAdded: self._on_client_added,
            ClientRemoved: self._on_client_removed,
            ClientExpelled: self._on_client_expelled,
            HoldChanged: self._on_hold_changed,
            PriorityChanged: self._on_priority_changed,
            ContextPriorityChanged: self._on_context_priority_changed,
            ThreadsChanged: self._on_threads_changed,
            Submitted: self._on_submitted,
            StepsFound: self._on_steps_found,
            StepDone: self._on_step_done,
            StepYielded: self._on_step_yielded,
            AbortRequested: self._on_abort_requested,
            TimerFired: self._on_timer_fired,
        }

    def handle(self, event: Event, actions: list[Action] | None = None) -> list[Action]:
        """Take one event, in order of time, and return the actions that follow from it, in order.

        If this fails, the caller's list holds the actions decided before the error.
        """
        t = event.t
        if t < self.now:
            raise InternalError(f"time ran backwards: {type(event).__name__} at {t} after {self.now}")
        self.now = t
        if actions is None:
            actions = []
        self._handlers[type(event)](event, actions)
        return actions

    def goes_on(self, number: int, token: int, steps: int) -> bool:
        """Whether the end of ``steps`` steps since ``token`` would be answered only with the start of the next.

        While that is so, the runner may go on and report all of them together.
        """
        job = self.jobs.get(number)
        return (
            job is not None
            and job.token == token
            and job.state is _RUNNING
            and job.ending is None
            and job.step + steps < job.steps
        )

    def precedes(self, urgent: int, running: int, t: int) -> bool:
        """Whether a job of one client that came now would have a job of another yield, which came just before."""
        first, second = self.clients.get(urgent), self.clients.get(running)
        return (
            first is not None
            and second is not None
            and first.core == second.core
            and not first.held
            and self._rank(first.demand.priority, t, None) < self._rank(second.demand.priority, t, None)
        )

    def check(self) -> None:
        """Assert the invariants; for tests and debugging, as it looks at everything."""
        _check_all(self)

    # ------------------------------------------------------------------ clients

    def _client(self, number: int) -> SchedulerClient:
        client = self.clients.get(number)
        if client is None or client.gone:
            raise InvalidHandle(f"client {number} is unknown to the scheduler or was removed")
        return client

    def _on_client_added(self, event: ClientAdded, actions: list[Action]) -> None:
        if event.client in self.clients:
            raise NameClash(f"client {event.client} was added before")
        verify_demand(event, self.resources)
        demand = Demand(event, self.resources)
        alone = place((), demand, self.resources)
        assert alone is not None  # verify_demand has seen to it
        self.clients[event.client] = SchedulerClient(event.client, event.core, demand, alone)

    def _on_client_removed(self, event: ClientRemoved, actions: list[Action]) -> None:
        client = self._client(event.client)
        client.gone = True
        queue = client.queue
        # From the back, so that no later job of the client is started on the way.
        while queue and queue[-1].state is _QUEUED:
            job = queue.pop()
            job.move(_ENDED)
            del self.jobs[job.number]
            actions.append(Finish(job.number, Outcome.GONE))
        if queue:
            self._end_early(queue[0], Outcome.GONE, actions)
        if not queue:
            self.clients.pop(client.number, None)  # the last job's end may have done it

    def _on_client_expelled(self, event: ClientExpelled, actions: list[Action]) -> None:
        """Take out every trace of a client, trusting nothing that is remembered about it."""
        number = event.client
        self.clients.pop(number, None)
        for core in self.cores:
            core.expel(number, actions)
        for job in [job for job in self.jobs.values() if job.client.number == number]:
            del self.jobs[job.number]
            actions.append(Finish(job.number, Outcome.GONE))
        for core in self.cores:
            core.settle(actions)

    def _on_hold_changed(self, event: HoldChanged, actions: list[Action]) -> None:
        client = self._client(event.client)
        client.held = event.held
        if not client.held and client.queue and client.queue[0].state is _QUEUED:
            self.cores[client.core].ask(client.queue[0], actions)

    def _on_priority_changed(self, event: PriorityChanged, actions: list[Action]) -> None:
        self._change_priority((event.client,), event.priority, actions)

    def _on_context_priority_changed(self, event: ContextPriorityChanged, actions: list[Action]) -> None:
        self._change_priority(event.clients, event.priority, actions)

    def _on_threads_changed(self, event: ThreadsChanged, actions: list[Action]) -> None:
        client = self._client(event.client)
        if client.started or client.queue:
            reason = "HVX threads cannot be changed after the first execution was asked for"
            actions.append(Refuse(client.number, reason))
            return
        if not 0 <= event.hvx <= self.resources.hvx:
            raise InvalidArgument(
                f"client {event.client} asks for {event.hvx} HVX threads, the device has {self.resources.hvx}"
            )
        client.demand.hvx = event.hvx
        alone = place((), client.demand, self.resources)
        assert alone is not None  # no more than the device has
        client.alone = alone

    def _change_priority(self, numbers: tuple[int, ...], priority: int, actions: list[Action]) -> None:
        """Give all these clients another priority: what waits is ordered anew, what runs may have to yield."""
        clients = [self._client(number) for number in numbers]
        priority = priority_on(self.resources, priority)
        for client in clients:
            core = self.cores[client.core]
            waiting = bool(client.queue) and client.queue[0].state in (_WAITING, _PAUSED)
            if waiting:
                core.forget(client.queue[0])
            client.demand.priority = priority
            for job in client.queue:
                job.rank = self._rank(priority, job.submitted_at, job.deadline_at)
            if waiting:
                core.enqueue(client.queue[0])
        for number in sorted({client.core for client in clients}):
            self.cores[number].settle(actions)

    # ------------------------------------------------------------------ jobs

    def _on_submitted(self, event: Submitted, actions: list[Action]) -> None:
        number = event.job
        client = self.clients.get(event.client)
        if client is None or client.gone:
            client = self._client(event.client)  # raises
        if number in self.jobs:
            raise InvalidArgument(f"job {number} is under way; job numbers are never used twice")
        if event.steps < 1:
            raise InvalidArgument(f"job {number} has {event.steps} steps; at least one is needed")
        deadline = event.deadline_at
        rank = self._rank(client.demand.priority, event.t, deadline)
        job = ScheduledJob(number, client, self._next_sequence(), rank, event.steps, event.t, deadline)
        self.jobs[number] = job
        client.queue.append(job)
        if event.timeout_at is not None:
            actions.append(ArmTimer(number, event.timeout_at))
        if len(client.queue) == 1 and not client.held:
            self.cores[client.core].ask(job, actions)

    def _on_steps_found(self, event: StepsFound, actions: list[Action]) -> None:
        job = self.jobs.get(event.job)
        if event.steps < 1:
            raise InvalidArgument(f"job {event.job} has {event.steps} steps; at least one is needed")
        if job is not None and job.state is _QUEUED:
            job.steps = event.steps

    def _on_step_done(self, event: StepDone, actions: list[Action]) -> None:
        job = self.jobs.get(event.job)
        if job is None or job.token != event.token:
            return  # an old answer: the job was ended or stopped before it came
        step = job.step = job.step + event.steps
        if job.ending is not None:
            self._end(job, job.ending, actions)
        elif step >= job.steps:
            self._end(job, _DONE, actions)
        elif job.state is _YIELDING:
            self._pause(job, actions)
        else:
            token = job.token = self._next_token()
            actions.append(Start(job.number, step, token))

    def _on_step_yielded(self, event: StepYielded, actions: list[Action]) -> None:
        job = self.jobs.get(event.job)
        if job is None or job.token != event.token:
            return
        if job.ending is not None:
            self._end(job, job.ending, actions)
        elif job.state is _YIELDING:
            self._pause(job, actions)
        else:
            raise InternalError(f"job {job.number} yielded without having been asked")

    def _on_abort_requested(self, event: AbortRequested, actions: list[Action]) -> None:
        job = self.jobs.get(event.job)
        if job is not None:
            self._end_early(job, Outcome.ABORTED, actions)

    def _on_timer_fired(self, event: TimerFired, actions: list[Action]) -> None:
        # Timers carry the number of the job they end; the job may be over by now.
        job = self.jobs.get(event.timer)
        if job is not None:
            self._end_early(job, Outcome.TIMED_OUT, actions)

    def _pause(self, job: ScheduledJob, actions: list[Action]) -> None:
        job.token = 0
        core = self.cores[job.client.core]
        core.release(job, actions, paused=True)
        core.settle(actions)

    def _end_early(self, job: ScheduledJob, outcome: Outcome, actions: list[Action]) -> None:
        """End a waiting job now and a running one at the end of its step; the first reason given stands."""
        if job.state is _RUNNING or job.state is _YIELDING:
            job.ending = job.ending or outcome
        else:
            self._end(job, outcome, actions)

    def _end(self, job: ScheduledJob, outcome: Outcome, actions: list[Action]) -> None:
        """Tell the end, and let the client's next job and everyone else have what is free."""
        client = job.client
        queue = client.queue
        core = self.cores[client.core]
        state = job.state
        job.move(_ENDED)
        job.token = 0
        del self.jobs[job.number]
        finish = Finish(job.number, outcome)
        if state is _QUEUED:
            queue.remove(job)
            actions.append(finish)
            return
        if job.share is not None:
            core.release(job, actions, paused=False)
        else:
            core.forget(job)
        actions.append(finish)
        queue.popleft()
        if queue and not client.held:
            core.ask(queue[0], actions)
        elif core.waiting:
            core.settle(actions)
        if client.gone and not queue:
            self.clients.pop(client.number, None)


_HOLDING = (JobState.RUNNING, JobState.YIELDING)
_ASKING = (JobState.WAITING, JobState.PAUSED)


def _check_all(scheduler: Scheduler) -> None:
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
