"""Graphs that run side by side are computed at the same time, and end, fail and yield as any other."""

from __future__ import annotations

import os
import queue
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.device.config import DeviceConfig
from openhtp.device.runner import SHORT_STEP_NS, SideBySideRunner
from openhtp.device.server import Server
from openhtp.device.sessions import FaultReach
from openhtp.engine.ort import OrtRun
from openhtp.records.trace import Stepped
from openhtp.sched.actions import Start
from openhtp.testing import hold, release
from tests.conftest import ramp, relu_graph
from tests.device.serving import NAME, serving, settled
from tests.device.test_preemption import TWO_CORES, long_graph
from tests.waiting import PATIENCE_S

HALF = {"vtcm_mb": 4, "hvx_threads": 2}
DEVICES = {
    "parallel graphs": (DeviceConfig(parallel_graphs=True), HALF, HALF),
    "two cores": (DeviceConfig(soc=TWO_CORES), {"core": 0}, {"core": 1}),
}
RELU = np.maximum(ramp(), 0)


class Stage:
    """Lets every step begin, and go on only when all may."""

    def __init__(self) -> None:
        self._begun = threading.Semaphore(0)
        self._go = threading.Event()
        self.failing: Exception | None = None

    def step(self, run: OrtRun, index: int, original: Callable[[OrtRun, int], None]) -> None:
        self._begun.release()
        assert self._go.wait(PATIENCE_S)
        if self.failing is not None:
            error, self.failing = self.failing, None
            raise error
        original(run, index)

    def await_begun(self, steps: int) -> None:
        """Wait until so many steps are under way at once."""
        for _ in range(steps):
            assert self._begun.acquire(timeout=PATIENCE_S), "the step waits for the other one's end"

    def go_on(self) -> None:
        self._go.set()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    stage, original = Stage(), OrtRun.step
    monkeypatch.setattr(OrtRun, "step", lambda run, index: stage.step(run, index, original))
    yield stage
    stage.go_on()


@pytest.fixture(params=DEVICES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    with serving(FaultReach.DEVICE, DEVICES[kind][0]) as server:
        yield server


class Pair:
    """A program with two graphs that may run at the same time."""

    def __init__(self, backend: htp.Backend, kind: str) -> None:
        config, *self.options = DEVICES[kind]
        self.backend = backend
        self.device = backend.create_device(name=NAME, soc=config.soc)
        self.context = self.device.create_context()
        self.graphs = [relu_graph(self.context, name, **self.options[n]) for n, name in enumerate("ab")]

    def start(self, make_signal: Callable[[], htp.Signal | None] = lambda: None) -> list[htp.Execution]:
        """Execute both at once: neither can begin alone."""
        return self.start_on(ramp(), self.graphs, make_signal)

    def start_on(
        self, x: np.ndarray, graphs: list[htp.Graph], make_signal: Callable[[], htp.Signal | None] = lambda: None
    ) -> list[htp.Execution]:
        hold(self.device)
        under_way = [graph.execute_async({"x": x}, signal=make_signal()) for graph in graphs]
        release(self.device)
        return under_way


@pytest.fixture
def pair(server: Server, backend: htp.Backend, kind: str) -> Pair:
    return Pair(backend, kind)


def test_both_compute_at_the_same_time_and_the_device_still_answers(pair: Pair, stage: Stage) -> None:
    pair.device.start_trace()
    under_way = pair.start()
    stage.await_begun(2)
    (session,) = pair.device.info()["sessions"]
    assert session["pending"] == 2
    stage.go_on()
    for execution in under_way:
        np.testing.assert_array_equal(execution.result(PATIENCE_S)["y"], RELU)
    steps = [record for record in pair.device.stop_trace().records if isinstance(record, Stepped)]
    assert len({step.job for step in steps}) == len(steps) == 2
    assert max(step.t for step in steps) < min(step.end for step in steps)


def test_a_step_ends_when_it_ended_not_when_the_loop_reports_it(server: Server, pair: Pair, stage: Stage) -> None:
    pair.device.start_trace()
    under_way = pair.start()
    stage.await_begun(2)
    hold(pair.device)
    stage.go_on()
    while len(server.core.loop._runner._beside._ended) < 2:  # type: ignore[attr-defined]
        settled(server)
    reported_after_ns = pair.context.opened.link.now()
    release(pair.device)
    for execution in under_way:
        execution.result(PATIENCE_S)
    steps = [record for record in pair.device.stop_trace().records if isinstance(record, Stepped)]
    assert len(steps) == 2
    assert all(step.t < step.end < reported_after_ns for step in steps)


def test_both_are_aborted_at_the_ends_of_their_steps(server: Server, pair: Pair, stage: Stage) -> None:
    under_way = pair.start()
    stage.await_begun(2)
    for execution in under_way:
        assert execution.cancel()
    settled(server)
    settled(server)
    stage.go_on()
    for execution in under_way:
        assert isinstance(execution.exception(PATIENCE_S), htp.Aborted)
    assert not server.core.executions.jobs
    np.testing.assert_array_equal(pair.graphs[0].execute({"x": ramp()})["y"], RELU)


def test_both_time_out_while_they_compute(server: Server, pair: Pair, stage: Stage) -> None:
    under_way = pair.start(lambda: pair.backend.create_signal(timeout_us=20_000))
    stage.await_begun(2)
    while server.core.loop._timers:
        settled(server)
    stage.go_on()
    for execution in under_way:
        assert isinstance(execution.exception(PATIENCE_S), htp.TimedOut)


def test_a_step_that_fails_is_its_own_jobs_failure(pair: Pair, stage: Stage) -> None:
    stage.failing = ValueError("bad luck")
    under_way = pair.start()
    stage.await_begun(2)
    stage.go_on()
    errors = [execution.exception(PATIENCE_S) for execution in under_way]
    assert sorted(error is None for error in errors) == [False, True]
    assert "bad luck" in str(next(error for error in errors if error is not None))


@pytest.mark.parametrize("broken", [False, True])
def test_a_client_goes_while_both_compute(server: Server, pair: Pair, stage: Stage, broken: bool) -> None:
    """What its steps still read and write stays mapped until they have ended, and then all of it goes."""
    under_way = pair.start()
    stage.await_begun(2)
    with htp.Backend() as other:
        neighbour = relu_graph(other.create_device(name=NAME).create_context())
        (connection,) = (it for it in server._connections.values() if it.session and it.session.jobs)
        server._post(lambda: server._drop(connection, broken=broken))
        settled(server)
        stage.go_on()
        for execution in under_way:
            assert isinstance(execution.exception(PATIENCE_S), htp.DeviceLost)
        np.testing.assert_array_equal(neighbour.execute({"x": ramp()})["y"], RELU)
        settled(server)
        server.core.loop.scheduler.check()
        assert not server.core.executions.jobs


def test_an_urgent_graph_takes_over_from_all_that_stand_in_its_way(
    server: Server, pair: Pair, stage: Stage, kind: str
) -> None:
    lower = [long_graph(pair.context, f"long {n}", **options) for n, options in enumerate(pair.options)]
    urgent = relu_graph(pair.context, "urgent", priority="high")
    x = np.random.default_rng(4).normal(size=(512, 512)).astype(np.float32)
    under_way = pair.start_on(x, lower)
    stage.await_begun(2)
    first = urgent.execute_async({"x": ramp()})
    settled(server)
    settled(server)
    stage.go_on()
    np.testing.assert_array_equal(first.result(PATIENCE_S)["y"], RELU)
    results = [execution.result(PATIENCE_S)["y"] for execution in under_way]
    np.testing.assert_array_equal(*results)
    yields = [execution.record.yields for execution in under_way if execution.record is not None]
    assert yields == ([1, 1] if kind == "parallel graphs" else [1, 0])


# The runner itself


class NotedGraph:
    """What a runner knows and notes of the graph whose step it computed."""

    steps = 1
    calls_user_code = False

    def __init__(self, step_ns: int) -> None:
        self.step_ns = step_ns

    def note_step(self, took_ns: int) -> None:
        self.step_ns = took_ns


def runner_with(*step_ns: int) -> tuple[SideBySideRunner, dict[int, str]]:
    """A runner of jobs of one step each, and on which threads they were computed."""
    computed_on: dict[int, str] = {}

    def job(number: int, length_ns: int) -> SimpleNamespace:
        def step(index: int) -> None:
            computed_on[number] = threading.current_thread().name

        return SimpleNamespace(step=step, failure=None, pace=None, graph=NotedGraph(length_ns))

    jobs: dict[int, Any] = {number: job(number, length) for number, length in enumerate(step_ns, 1)}
    return SideBySideRunner(jobs, iter(range(1, 1000)).__next__, 2), computed_on


def stop(job: int, step: int, token: int, steps: int, began_ns: int, ended_ns: int) -> None:
    """Whoever asks is not to go on."""


def start_all(runner: SideBySideRunner, jobs: int) -> None:
    for job in range(1, jobs + 1):
        runner.start(0, Start(job=job, step=0, token=job))


LONG = SHORT_STEP_NS
SHORT = SHORT_STEP_NS - 1
HERE = threading.main_thread().name


def test_a_job_that_runs_alone_is_computed_on_the_loops_thread() -> None:
    runner, computed_on = runner_with(LONG)
    runner.attach(lambda call: call(), stop)
    start_all(runner, 1)
    ended = runner.run_one(0)
    assert ended is not None
    assert ended.began_ns is None
    assert computed_on == {1: HERE}


def test_where_ends_cannot_be_posted_steps_are_computed_in_turns() -> None:
    runner, computed_on = runner_with(LONG, LONG)
    start_all(runner, 2)
    assert [ended.job for ended in (runner.run_one(0), runner.run_one(0)) if ended] == [1, 2]
    assert computed_on == {1: HERE, 2: HERE}


def test_only_steps_longer_than_a_wake_up_are_handed_out() -> None:
    runner, computed_on = runner_with(SHORT, LONG, SHORT)
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    runner.attach(posted.put, stop)
    start_all(runner, 3)
    assert runner.soon(0)
    assert [ended.job for ended in (runner.run_one(0), runner.run_one(0)) if ended] == [1, 3]
    assert (runner.next_at(7), runner.soon(7), runner.run_one(7)) == (None, False, None)
    posted.get(timeout=PATIENCE_S)()
    assert (runner.next_at(7), runner.soon(7)) == (7, True)
    ended = runner.run_one(7)
    assert ended is not None
    assert (ended.job, ended.token) == (2, 2)
    assert computed_on[1] == computed_on[3] == HERE
    assert computed_on[2].startswith("openhtp-steps")
    assert runner.next_at(8) is None


def test_how_long_a_step_took_elsewhere_is_remembered() -> None:
    runner, computed_on = runner_with(LONG, LONG)
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    runner.attach(posted.put, stop)
    for elsewhere in (True, False):  # on this clock each step takes some nanoseconds: next time they are short
        start_all(runner, 2)
        for _ in range(2):
            if elsewhere:
                assert runner.run_one(0) is None
                posted.get(timeout=PATIENCE_S)()
            assert runner.run_one(0) is not None
        assert all((name != HERE) is elsewhere for name in computed_on.values())


# The device as a process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_device_ends_while_both_compute(backend: htp.Backend, kind: str, number: signal.Signals) -> None:
    config, *options = DEVICES[kind]
    device = backend.create_device(soc=config.soc, parallel_graphs=config.parallel_graphs)
    context = device.create_context(queue_depth=20)
    graphs = [long_graph(context, f"long {n}", **option) for n, option in enumerate(options)]
    x = np.ones((512, 512), np.float32)
    begun = threading.Event()
    under_way = [graph.execute_async({"x": x}, notify=lambda *_: begun.set()) for graph in 8 * graphs]
    assert begun.wait(PATIENCE_S)
    os.kill(device.pid, number)
    with pytest.raises(htp.DeviceLost):  # noqa: PT012  # the others may be over before the signal comes through
        while True:
            under_way += [graph.execute_async({"x": x}) for graph in graphs]
    errors = [execution.exception(PATIENCE_S) for execution in under_way]
    assert any(error is None for error in errors)
    assert all(error is None or isinstance(error, htp.DeviceLost) for error in errors)


class Mixed:
    """A program that executes graphs of all lengths and urgencies, some of which must be over soon."""

    def __init__(self, device: htp.Device, option: dict[str, Any]) -> None:
        self.backend = device.backend
        context = device.create_context(queue_depth=10)
        long, x = long_graph(context, **option), np.eye(512, dtype=np.float32)
        wide = ramp((128, 512)) % 64 - 32
        self.subjects = {
            "long": (long, x, long.execute({"x": x})["y"]),
            "wide": (relu_graph(context, "wide", wide.shape, **option), wide, np.maximum(wide, 0)),
            "short": (relu_graph(context, "short", **option), ramp(), RELU),
            "urgent": (relu_graph(context, "urgent", priority="high", **option), ramp(), RELU),
        }

    def execute(self, times: int, seed: int) -> None:
        dice, pending = random.Random(seed), []
        for number in range(times):
            name = dice.choice(["wide", "short", "urgent"]) if number % 100 else "long"
            graph, x, expected = self.subjects[name]
            limit = self.backend.create_signal(timeout_us=300) if dice.random() < 0.1 else None
            try:
                pending.append((graph.execute_async({"x": x}, signal=limit), expected, limit))
            except htp.TimedOut:
                assert limit is not None
        for execution, expected, limit in pending:
            error = execution.exception(PATIENCE_S)
            if error is None:
                np.testing.assert_array_equal(execution.result()["y"], expected)
            else:
                assert limit is not None
                assert isinstance(error, htp.TimedOut)


def test_two_thousand_executions_of_all_kinds(backend: htp.Backend, kind: str) -> None:
    config, *options = DEVICES[kind]
    device = backend.create_device(soc=config.soc, parallel_graphs=config.parallel_graphs)
    programs = [Mixed(device, options[number % 2]) for number in range(4)]
    with ThreadPoolExecutor(len(programs)) as threads:
        runs = [threads.submit(program.execute, 500, seed) for seed, program in enumerate(programs)]
    for run in runs:
        run.result()
    assert device.restarts == 0
    assert [session["pending"] for session in device.info()["sessions"]] == [0]
