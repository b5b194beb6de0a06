"""The loop hears what was asked while a step ran before it goes on to the next step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from openhtp.device.loop import POLL_INTERVAL_NS, TIMERS_KEPT, Loop
from openhtp.device.runner import Ended, Post
from openhtp.sched.actions import AskYield, Grant, Outcome, Release, Start
from openhtp.sched.events import AbortRequested, ClientAdded, Submitted
from openhtp.sched.resources import DeviceResources
from openhtp.sched.scheduler import Scheduler

STEP_NS = 10 * POLL_INTERVAL_NS
LOW, HIGH = 1, 2


class Clock:
    t = 0

    def now(self) -> int:
        return self.t

    def advance_to(self, t: int) -> None:
        pass


class Machine:
    """Runner, observer and inbox in one: computes by moving the clock, and lets requests come in meanwhile."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.ready: list[Start] = []
        self.did: list[str] = []
        self.coming: list[tuple[int, Callable[[], object]]] = []
        self.loop = Loop(Scheduler(DeviceResources()), self.clock, self, self)
        for client, priority in ((LOW, 0), (HIGH, 200)):
            self.loop.handle(ClientAdded(t=0, client=client, priority=priority))

    def submit(self, job: int, client: int, steps: int, timeout_at: int | None = None) -> None:
        self.loop.handle(Submitted(self.clock.now(), job, client, steps, timeout_at))

    def run(self) -> list[str]:
        while self.loop.turn(self, block=False):
            pass
        return self.did

    def run_until_idle(self) -> None:
        while self.ready:
            self.loop.turn(self, block=False)

    # The runner

    def attach(self, post: Post) -> None:
        pass

    def start(self, t: int, action: Start) -> None:
        self.ready.append(action)

    def ask_yield(self, t: int, action: AskYield) -> None:
        pass

    def hurry(self, t: int, job: int) -> None:
        pass

    def forget(self, job: int) -> None:
        pass

    def next_at(self, now: int) -> int | None:
        return now if self.ready else None

    def run_one(self, now: int) -> Ended | None:
        action = self.ready.pop(0)
        self.clock.t += STEP_NS
        self.did.append(f"{action.job}.{action.step}")
        return Ended(action.job, action.step, action.token)

    def soon(self, now: int) -> bool:
        return False

    # The inbox

    def poll(self, timeout_ns: int | None) -> None:
        while self.coming and self.coming[0][0] <= self.clock.now():
            self.coming.pop(0)[1]()

    def flush(self) -> None:
        pass

    # The observer

    def finished(self, job: int, outcome: Outcome, t: int) -> None:
        self.did.append(f"{job} {outcome.value}")

    def granted(self, action: Grant, t: int) -> None:
        pass

    def released(self, action: Release, t: int) -> None:
        pass

    def yield_asked(self, action: AskYield, t: int) -> None:
        pass

    def step_ended(self, job: int, step: int, start_ns: int, end_ns: int) -> None:
        assert end_ns == start_ns + STEP_NS


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_an_urgent_request_waits_for_the_step_under_way_and_no_other(machine: Machine) -> None:
    machine.submit(1, LOW, steps=3)
    machine.coming.append((STEP_NS // 2, lambda: machine.submit(2, HIGH, steps=1)))
    assert machine.run() == ["1.0", "2.0", "2 done", "1.1", "1.2", "1 done"]


def test_an_abort_that_came_during_a_step_ends_the_job_with_it(machine: Machine) -> None:
    machine.submit(1, LOW, steps=3)
    abort = AbortRequested(t=STEP_NS, job=1)
    machine.coming.append((STEP_NS // 2, lambda: machine.loop.handle(abort)))
    assert machine.run() == ["1.0", "1 aborted"]


def test_a_timeout_during_a_step_ends_the_job_with_it(machine: Machine) -> None:
    machine.submit(1, LOW, steps=3, timeout_at=STEP_NS // 2)
    assert machine.run() == ["1.0", "1 timed_out"]


def test_a_job_that_ends_before_its_timeout_is_done(machine: Machine) -> None:
    machine.submit(1, LOW, steps=2, timeout_at=2 * STEP_NS)
    assert machine.run()[:3] == ["1.0", "1.1", "1 done"]


def test_timers_of_jobs_that_are_over_are_not_kept() -> None:
    machine = Machine()
    for job in range(1, 5 * TIMERS_KEPT):
        machine.submit(job, LOW, 1, timeout_at=10**18)
        machine.run_until_idle()
    assert len(machine.loop._timers) <= TIMERS_KEPT + 1
