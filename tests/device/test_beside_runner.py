"""The runner that computes on another thread: it never does so in the loop's, and hands ends over in order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from types import SimpleNamespace
from typing import Any

from openhtp.core.errors import ExecutionError
from openhtp.device.runner import BesideRunner, Ended
from openhtp.sched.actions import Start


class Thread(Executor):
    """Work that waits until it is told to go on: another thread, without one."""

    def __init__(self) -> None:
        self.work: list[Callable[[], object]] = []

    def submit(self, fn: Callable[[], object]) -> Any:  # type: ignore[override]
        self.work.append(fn)

    def go_on(self) -> None:
        for work in self.work:
            work()
        self.work.clear()


def runner_with(*steps: Callable[[int], None]) -> tuple[BesideRunner, Thread, dict[int, Any]]:
    jobs: dict[int, Any] = {n: SimpleNamespace(step=step, failure=None) for n, step in enumerate(steps, 1)}
    thread, times = Thread(), iter(range(100, 200))
    runner = BesideRunner(jobs, lambda: next(times), thread)
    runner.attach(lambda call: call(), lambda *_: False)
    return runner, thread, jobs


def test_steps_end_only_when_the_other_thread_says_so() -> None:
    done: list[int] = []
    runner, thread, _ = runner_with(done.append, done.append)
    runner.start(0, Start(job=1, step=3, token=7))
    runner.start(0, Start(job=2, step=4, token=8))
    assert (runner.next_at(50), runner.run_one(50), runner.soon(50), done) == (None, None, False, [])
    thread.go_on()
    assert done == [3, 4]
    assert runner.next_at(50) == 50
    assert runner.run_one(50) == Ended(1, 3, 7, began_ns=100, ended_ns=101)
    assert runner.soon(50)
    assert runner.run_one(50) == Ended(2, 4, 8, began_ns=102, ended_ns=103)
    assert runner.next_at(50) is None


def test_a_step_that_raises_is_its_jobs_failure() -> None:
    def step(index: int) -> None:
        raise ValueError("bad luck")

    runner, thread, jobs = runner_with(step)
    runner.start(0, Start(job=1, step=0, token=1))
    thread.go_on()
    assert runner.run_one(0) == Ended(1, 0, 1, began_ns=100, ended_ns=101)
    assert isinstance(jobs[1].failure, ExecutionError)
    assert "bad luck" in str(jobs[1].failure)


def test_a_job_that_is_over_already_still_ends_its_step() -> None:
    runner, thread, _ = runner_with()
    runner.start(0, Start(job=9, step=0, token=1))
    thread.go_on()
    assert runner.run_one(0) == Ended(9, 0, 1, began_ns=100, ended_ns=101)
