"""The loop hears what was asked while a step ran before it goes on to the next step."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from openhtp.device import runner
from openhtp.device.loop import LONGEST_ROW_NS, POLL_INTERVAL_NS, TIMERS_KEPT, Loop
from openhtp.device.runner import Ended, GoOn, InlineRunner, Post
from openhtp.engine.protocol import NOT_IN_A_ROW, RowDone, RowWatch
from openhtp.sched.actions import Action, AskYield, Grant, Outcome, Release, Start
from openhtp.sched.events import AbortRequested, ClientAdded, Event, StepDone, Submitted
from openhtp.sched.resources import DeviceResources
from openhtp.sched.scheduler import Scheduler

STEP_NS = 10 * POLL_INTERVAL_NS
LOW, HIGH = 1, 2
# A descriptor that nobody looks at.
NEWS = 77


class Clock:
    t = 0

    def now(self) -> int:
        return self.t

    def advance_to(self, t: int) -> None:
        pass


class Machine:
    """Runner, keeper of jobs and inbox in one: computes by moving the clock, while requests come in."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.ready: list[Start] = []
        self.did: list[str] = []
        self.stopped: list[int] = []
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

    def attach(self, post: Post, go_on: GoOn) -> None:
        pass

    def start(self, t: int, action: Start) -> None:
        self.ready.append(action)

    def ask_yield(self, t: int, action: AskYield) -> None:
        pass

    def hurry(self, t: int, job: int) -> None:
        pass

    def stop(self, job: int) -> None:
        self.stopped.append(job)

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

    # The keeper of jobs

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

    def must_know_each_step(self, job: int) -> bool:
        return False


class _Graph:
    """What a runner notes of the graph whose step it computed."""

    step_ns = 0
    steps = 0
    calls_user_code = False

    def note_step(self, took_ns: int) -> None:
        self.step_ns = took_ns


class Row(Machine):
    """The same on a thread of its own, with a device's runner: steps follow each other until something comes."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, int]] = []
        self.jobs: dict[int, Any] = {}
        self.runner = InlineRunner(self.jobs, self.clock.now)
        self.loop = Loop(self.loop.scheduler, self.clock, self.runner, self)
        self.loop.observe = self._note
        self.loop.attach(lambda call: call())

    def submit(self, job: int, client: int, steps: int, timeout_at: int | None = None) -> None:
        def step(index: int) -> None:
            self.clock.t += STEP_NS
            self.did.append(f"{job}.{index}")

        self.jobs[job] = SimpleNamespace(step=step, pace=None, failure=None, graph=_Graph())
        super().submit(job, client, steps, timeout_at)

    def run_until_idle(self) -> None:
        while self.runner.next_at(0) is not None:
            self.loop.turn(self, block=False)

    def _note(self, event: Event, actions: list[Action]) -> None:
        if isinstance(event, StepDone):
            self.told.append((event.job, event.steps))


@pytest.fixture(params=[Machine, Row])
def machine(request: pytest.FixtureRequest) -> Machine:
    made = request.param()
    assert isinstance(made, Machine)
    return made


def test_steps_that_nobody_waits_for_are_told_together() -> None:
    machine = Row()
    machine.submit(1, LOW, steps=4)
    machine.coming.append((STEP_NS + STEP_NS // 2, lambda: machine.submit(2, HIGH, steps=1)))
    assert machine.run() == ["1.0", "1.1", "2.0", "2 done", "1.2", "1.3", "1 done"]
    assert machine.told == [(1, 2), (2, 1), (1, 2)]


def test_a_hold_that_comes_between_two_steps_is_kept() -> None:
    machine = Row()
    machine.submit(1, LOW, steps=4)
    machine.coming.append((STEP_NS // 2, lambda: setattr(machine.loop, "held", True)))
    machine.loop.turn(machine, block=False)
    assert machine.did == ["1.0"]
    machine.loop.held = False
    assert machine.run() == ["1.0", "1.1", "1.2", "1.3", "1 done"]


def test_a_step_that_fails_is_the_last_in_a_row() -> None:
    machine = Row()
    machine.submit(1, LOW, steps=4)
    machine.jobs[1].step = lambda index: machine.did.append(f"1.{index}") or 1 // (index != 1)
    ends: list[int] = []

    def step_ended(job: int, step: int, start_ns: int, end_ns: int) -> None:
        ends.append(step)
        if machine.jobs[job].failure is not None:
            machine.loop.handle(AbortRequested(t=machine.clock.now(), job=job))

    machine.step_ended = step_ended  # type: ignore[method-assign]
    assert machine.run() == ["1.0", "1.1", "1 aborted"]
    assert ends == [0, 1]


class ByItself:
    """A run that computes steps in a row by itself: two at most, and none before its second."""

    def __init__(self, machine: Row) -> None:
        self._machine = machine
        self.watches: list[RowWatch] = []

    def step(self, index: int) -> None:
        self._machine.jobs[1].step(index)

    def row(self, first: int, end: int, watch: RowWatch) -> RowDone:
        if first < 2:
            return NOT_IN_A_ROW
        self.watches.append(watch)
        for index in range(first, min(first + 2, end)):
            began_ns = self._machine.clock.t
            self._machine.clock.t += STEP_NS
            self._machine.did.append(f"row {index}")
        return RowDone(min(2, end - first), began_ns, self._machine.clock.t)


@pytest.fixture
def any_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "WORTH_A_ROW", 1)


def with_a_row(steps: int, *, timeout_at: int | None = None) -> tuple[Row, ByItself]:
    machine = Row()
    machine.loop.attach(lambda call: call(), NEWS)
    machine.submit(1, LOW, steps=steps, timeout_at=timeout_at)
    run = ByItself(machine)
    machine.jobs[1].runs, machine.jobs[1].graph.steps = [run], steps
    return machine, run


def test_a_run_goes_on_by_itself_where_it_can(any_row: None) -> None:
    machine, run = with_a_row(steps=7)
    assert machine.run() == ["1.0", "1.1", "row 2", "row 3", "row 4", "row 5", "row 6", "1 done"]
    assert machine.told == [(1, 7)]
    assert [watch.news for watch in run.watches] == [NEWS] * 3
    assert [watch.interval_ns for watch in run.watches] == [POLL_INTERVAL_NS] * 3
    assert [watch.looked_ns for watch in run.watches] == [2 * STEP_NS, 4 * STEP_NS, 6 * STEP_NS]
    assert run.watches[0].until_ns == 2 * STEP_NS + LONGEST_ROW_NS


def test_a_row_ends_where_a_timer_is_due(any_row: None) -> None:
    machine, run = with_a_row(steps=5, timeout_at=3 * STEP_NS + 1)
    assert machine.run() == ["1.0", "1.1", "row 2", "row 3", "1 timed_out"]
    assert run.watches[0].until_ns == 3 * STEP_NS + 1


def test_what_comes_is_taken_in_after_a_row(any_row: None) -> None:
    machine, _ = with_a_row(steps=6)
    machine.coming.append((3 * STEP_NS, lambda: machine.submit(2, HIGH, steps=1)))
    assert machine.run() == ["1.0", "1.1", "row 2", "row 3", "2.0", "2 done", "1.4", "row 5", "1 done"]


def test_steps_at_which_somebody_looks_are_told_one_by_one(any_row: None, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, run = with_a_row(steps=4)
    monkeypatch.setattr(machine, "must_know_each_step", lambda job: True)
    assert machine.run() == ["1.0", "1.1", "1.2", "1.3", "1 done"]
    assert not run.watches


def test_a_row_of_few_steps_is_not_begun() -> None:
    machine, run = with_a_row(steps=5)
    assert machine.run() == ["1.0", "1.1", "1.2", "1.3", "1.4", "1 done"]
    assert not run.watches


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


def test_a_runner_is_told_to_stop_the_step_of_a_job_whose_time_is_over() -> None:
    machine = Machine()
    machine.submit(1, LOW, steps=3, timeout_at=STEP_NS // 2)
    machine.run()
    assert machine.stopped == [1]


def test_a_job_that_ends_before_its_timeout_is_done(machine: Machine) -> None:
    machine.submit(1, LOW, steps=2, timeout_at=2 * STEP_NS)
    assert machine.run()[:3] == ["1.0", "1.1", "1 done"]


def test_timers_of_jobs_that_are_over_are_not_kept() -> None:
    machine = Machine()
    for job in range(1, 5 * TIMERS_KEPT):
        machine.submit(job, LOW, 1, timeout_at=10**18)
        machine.run_until_idle()
    assert len(machine.loop._timers) <= TIMERS_KEPT + 1
