"""Every accepted execution ends and is notified once, whatever those who wait for it do."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

import openhtp as htp
from openhtp.runtime.calls.notify import Notifier
from openhtp.runtime.calls.queue import most_untold
from openhtp.testing import hold, release
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S, wait_until


def until_idle(context: htp.Context) -> None:
    """Wait until nothing is pending; the test's own time limit ends it otherwise."""
    pause = threading.Event()
    while context.pending:
        pause.wait(0.001)


def test_executions_outlive_the_loop_that_awaited_them(backend: htp.Backend) -> None:
    device = backend.create_device()
    context = device.create_context(queue_depth=8)
    graph = relu_graph(context)
    told: list[int] = []
    executions: list[htp.Execution] = []
    hold(device)

    async def give_up() -> None:
        executions.extend(
            graph.execute_async({"x": ramp()}, notify=lambda n, _: told.append(n), notify_param=number)
            for number in range(8)
        )

        async def wait(execution: htp.Execution) -> object:
            return await execution

        await asyncio.wait_for(asyncio.gather(*map(wait, executions)), 0.02)

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    release(device)
    for execution in executions:
        np.testing.assert_array_equal(execution.result(PATIENCE_S)["y"], np.maximum(ramp(), 0))
    until_idle(context)
    backend.free()
    assert sorted(told) == list(range(8))
    backend.__init__()  # type: ignore[misc]  # so that the fixture has something to free


class Stubborn(np.ndarray):
    """An array that ends whoever writes to it."""

    def __array_function__(self, *call: object) -> object:
        raise SystemExit("not with me")


def read_only(array: np.ndarray) -> None:
    array.flags.writeable = False


@pytest.mark.parametrize(
    ("target", "spoil"),
    [(np.zeros((1, 8), np.float32), read_only), (np.zeros((1, 8), np.float32).view(Stubborn), lambda _: None)],
    ids=["read-only", "raises SystemExit"],
)
def test_an_output_that_cannot_be_written(
    backend: htp.Backend, target: np.ndarray, spoil: Callable[[np.ndarray], None]
) -> None:
    device = backend.create_device()
    context = device.create_context(queue_depth=3)
    graph = relu_graph(context)
    told: list[int] = []
    hold(device)
    good = graph.execute_async({"x": ramp()})
    bad = graph.execute_async({"x": ramp()}, {"y": target}, notify=lambda _, status: told.append(status))
    also_good = graph.execute_async({"x": ramp()})
    spoil(target)
    release(device)
    with pytest.raises(htp.ExecutionError, match="output 'y'"):
        bad.result(PATIENCE_S)
    for execution in (good, also_good):
        np.testing.assert_array_equal(execution.result(PATIENCE_S)["y"], np.maximum(ramp(), 0))
    assert context.pending == 0
    backend.notifier.close()
    assert told == [htp.ExecutionError("").code]


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), ValueError("mine")], ids=repr)
def test_what_a_callback_raises_stays_with_it(
    backend: htp.Backend, raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    graph = relu_graph(backend.create_device().create_context())
    after = threading.Event()

    def fail(_: object, __: int) -> None:
        raise raised

    with caplog.at_level(logging.ERROR):
        graph.execute_async({"x": ramp()}, notify=fail).result(PATIENCE_S)
        graph.execute_async({"x": ramp()}, notify=lambda *_: after.set()).result(PATIENCE_S)
        assert after.wait(PATIENCE_S)
    assert "raised" in caplog.text


def test_free_waits_for_the_last_slow_callback(backend: htp.Backend) -> None:
    graph = relu_graph(backend.create_device().create_context())
    may_go, told = threading.Event(), []

    def slow(number: int, _: int) -> None:
        may_go.wait(PATIENCE_S)
        threading.Event().wait(0.4)  # what a slow callback does
        told.append(number)

    for number in range(4):
        graph.execute_async({"x": ramp()}, notify=slow, notify_param=number)
    may_go.set()
    backend.free()
    assert sorted(told) == [0, 1, 2, 3]
    backend.__init__()  # type: ignore[misc]  # so that the fixture has something to free


def test_free_from_within_a_callback(backend: htp.Backend) -> None:
    graph = relu_graph(backend.create_device().create_context())
    both, freed, later = threading.Event(), threading.Event(), threading.Event()

    def free(_: object, __: int) -> None:
        assert both.wait(PATIENCE_S)  # what is freed takes no execution
        backend.free()
        freed.set()

    graph.execute_async({"x": ramp()}, notify=free)
    graph.execute_async({"x": ramp()}, notify=lambda *_: later.set())
    both.set()
    assert freed.wait(PATIENCE_S)
    assert later.wait(PATIENCE_S)
    backend.__init__()  # type: ignore[misc]  # so that the fixture has something to free


def test_a_notifier_that_is_told_twice_to_end_ends() -> None:
    notifier, may_go = Notifier(), threading.Event()
    notifier.post(may_go.wait)
    notifier.stop()
    notifier.stop()
    may_go.set()
    wait_until(lambda: notifier.thread is None)


def test_who_asks_after_the_end_is_answered_and_no_thread_is_left() -> None:
    """A callback on an execution that is over, of a backend that was freed before it ever notified anybody."""
    with htp.Backend() as backend:
        execution = relu_graph(backend.create_device().create_context()).execute_async({"x": ramp()})
        execution.result(PATIENCE_S)
    before = set(threading.enumerate())
    for _ in range(3):
        told = threading.Event()
        execution.add_done_callback(lambda _, told=told: told.set())
        assert told.wait(PATIENCE_S)
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
    assert not {thread for thread in threading.enumerate() if thread.name == "openhtp-notify"} - before


class BlockedCallbacks:
    """Callbacks of which the first waits; counts executions that were accepted and not yet told of."""

    def __init__(self, graph: htp.Graph, count: int) -> None:
        self._graph = graph
        self._count = count
        self.may_go = threading.Event()
        self.over = threading.Event()
        self.told = 0
        self.worst = 0

    def submit(self) -> None:
        for accepted in range(1, self._count + 1):
            self._graph.execute_async({"x": ramp()}, notify=self.notify)
            self.worst = max(self.worst, accepted - self.told)
        self.may_go.set()

    def notify(self, _: object, __: int) -> None:
        self.may_go.wait(0.5)  # slow, as long as nobody says otherwise
        self.told += 1
        if self.told == self._count:
            self.over.set()


@pytest.mark.parametrize("depth", [1, 12])
def test_finished_executions_do_not_pile_up_behind_slow_callbacks(backend: htp.Backend, depth: int) -> None:
    context = backend.create_device().create_context(queue_depth=depth)
    callbacks = BlockedCallbacks(relu_graph(context), 100)
    submitter = threading.Thread(target=callbacks.submit)
    submitter.start()
    while not callbacks.told:  # which is when all are accepted, or some were held back for a while
        threading.Event().wait(0.001)
    callbacks.may_go.set()
    submitter.join()
    assert callbacks.over.wait(PATIENCE_S)
    assert callbacks.worst <= depth + most_untold(depth) + 1


def test_callbacks_may_submit_while_others_are_held_back(backend: htp.Backend) -> None:
    """At depth 1, with more notifications waiting than may: who delivers them is not kept from it."""
    graph = relu_graph(backend.create_device().create_context(queue_depth=1))
    told: list[int] = []
    over = threading.Event()

    def again(left: int, _: int) -> None:
        told.append(left)
        if left:
            graph.execute_async({"x": ramp()}, notify=again, notify_param=left - 1)
        if len(told) == 120:
            over.set()

    for _ in range(30):
        graph.execute_async({"x": ramp()}, notify=again, notify_param=3)
    assert over.wait(PATIENCE_S)


def test_a_callback_may_wait_for_a_submission(
    backend: htp.Backend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("openhtp.runtime.calls.queue.TELLING_PATIENCE_NS", 20_000_000)
    graph = relu_graph(backend.create_device().create_context(queue_depth=1))
    all_accepted = threading.Event()
    with caplog.at_level(logging.WARNING):
        for _ in range(most_untold(1) + 5):
            graph.execute_async({"x": ramp()}, notify=lambda *_: all_accepted.wait(PATIENCE_S))
        all_accepted.set()
        backend.notifier.close()
    assert "wait for their notifications" in caplog.text


def test_a_signal_ends_a_call_that_is_held_back(backend: htp.Backend) -> None:
    graph = relu_graph(backend.create_device().create_context(queue_depth=1))
    signal, may_go, outcomes = backend.create_signal(), threading.Event(), []

    for _ in range(most_untold(1)):
        graph.execute_async({"x": ramp()}, notify=lambda *_: may_go.wait(PATIENCE_S)).result(PATIENCE_S)
    submitter = threading.Thread(target=lambda: outcomes.append(_aborted(graph, signal)))
    submitter.start()
    while signal.interrupt.holder is None:
        threading.Event().wait(0.001)
    signal.trigger()
    submitter.join(PATIENCE_S)
    assert not submitter.is_alive()
    may_go.set()
    assert outcomes == [True]


def _aborted(graph: htp.Graph, signal: htp.Signal) -> bool:
    try:
        graph.execute_async({"x": ramp()}, signal=signal)
    except htp.Aborted:
        return True
    return False


def test_what_is_dropped_is_not_called_later(caplog: pytest.LogCaptureFixture) -> None:
    notifier, may_go, runs, told = Notifier(), threading.Event(), threading.Event(), []

    def block() -> None:
        runs.set()
        may_go.wait(PATIENCE_S)

    notifier.post(block)
    for number in range(3):
        notifier.post(told.append, number)
    assert runs.wait(PATIENCE_S)
    thread = notifier.thread
    assert thread is not None
    with caplog.at_level(logging.WARNING):
        notifier.close(0.01)
    assert "it and 3 more" in caplog.text
    may_go.set()
    thread.join(PATIENCE_S)
    assert not told


_ENDS_WITH_CALLBACKS = """
import threading
import openhtp as htp
from tests.conftest import ramp, relu_graph
runs = threading.Event()

def never_ends(*_):
    runs.set()
    threading.Event().wait()

graph = relu_graph(htp.Backend().create_device().create_context(queue_depth=4))
for _ in range(4):
    graph.execute_async({"x": ramp()}, notify=never_ends)
runs.wait()
"""


def test_a_program_ends_although_a_callback_does_not() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _ENDS_WITH_CALLBACKS],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert "it and 3 more that wait are dropped" in ended.stderr
