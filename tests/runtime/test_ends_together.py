"""Executions whose ends come in one packet: completed together or one by one, their callers cannot tell which."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import openhtp as htp
from openhtp.core import status as st
from openhtp.rpc import frames
from openhtp.runtime.calls.call import Call
from openhtp.runtime.calls.execution import complete_from, complete_together
from openhtp.runtime.calls.notify import Notifier
from openhtp.runtime.instruments.instrument import Instrument
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S

Complete = Callable[[memoryview, dict[int, htp.Execution]], None]
ABORTED = st.QNN_GRAPH_ERROR_ABORTED.code


class Silent:
    """In place of the socket: the device hears of nothing."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)


class Counter:
    """A graph on registered memory whose executions end when a test says so."""

    def __init__(self, backend: htp.Backend, complete: Complete) -> None:
        context = backend.create_device().create_context(queue_depth=20)
        self.graph = relu_graph(context)
        assert self.graph.loaded is not None
        self.callee = self.graph.loaded.callee
        self.link = self.callee.link
        memory = context.register_memory(4096)
        self.x, self.y = memory.array("x"), memory.array("y")
        self.told: queue.SimpleQueue[tuple[object, int]] = queue.SimpleQueue()
        self.complete = complete

    def submit(self, **options: object) -> htp.Execution:
        return self.graph.execute_async({"x": self.x}, {"y": self.y}, **options)  # type: ignore[arg-type]

    def notified(self, number: object, **options: object) -> htp.Execution:
        return self.submit(notify=lambda *end: self.told.put(end), notify_param=number, **options)

    def end(self, *ends: tuple[htp.Execution, int]) -> None:
        records = [frames.RECORD.pack(one.job, status, 0, 1, 2, 3, 0, 0, 0) for one, status in ends]
        packet = frames.BATCH_HEAD.pack(frames.DONE, 0, len(records)) + b"".join(records)
        self.complete(memoryview(packet), self.link._pending)

    def next(self, count: int) -> list[tuple[object, int]]:
        return [self.told.get(timeout=PATIENCE_S) for _ in range(count)]

    def is_at_rest(self) -> bool:
        """Whether nothing is left of any execution."""
        places = self.callee.places
        until = threading.Event()
        self.callee.notifier.post(until.set)
        assert until.wait(PATIENCE_S)
        return not (
            self.link._pending
            or self.link.data_order.registered
            or self.callee.calls_queued()
            or places.used
            or places._untold
        )


@pytest.fixture(params=[complete_together, complete_from])
def counter(
    request: pytest.FixtureRequest, backend: htp.Backend, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Counter]:
    counter = Counter(backend, request.param)
    with monkeypatch.context() as patch:
        patch.setattr(counter.link, "_data", Silent())
        yield counter


def test_each_is_notified_once_in_the_order_of_their_ends(counter: Counter) -> None:
    executions = [counter.notified(number) for number in range(20)]
    order = [*range(1, 20, 2), *range(0, 20, 2)]
    counter.end(*[(executions[number], 0) for number in order[:13]])
    counter.end(*[(executions[number], 0) for number in order[13:]])
    assert counter.next(20) == [(number, 0) for number in order]
    assert all(execution.done() for execution in executions)
    assert counter.is_at_rest()
    assert counter.told.empty()


def test_frames_tell_whether_many_are_under_way(counter: Counter) -> None:
    executions = [counter.notified(number) for number in range(12)]
    flags = [frames.read_head(frame).flags for frame in counter.link._data.frames]
    assert flags == [0] * 8 + [frames.FLAG_MANY] * 4
    counter.end(*[(one, 0) for one in executions])
    counter.next(12)
    counter.end((counter.notified(12), 0))
    assert frames.read_head(counter.link._data.frames[-1]).flags == 0
    counter.next(1)


def test_ends_of_all_kinds_in_one_packet(counter: Counter) -> None:
    called: queue.SimpleQueue[htp.Execution] = queue.SimpleQueue()
    first, silent, failed, awaited, watched = (
        counter.notified(0),
        counter.submit(),
        counter.notified(2),
        counter.notified(3),
        counter.submit(),
    )
    signalled = counter.notified(5, signal=counter.graph.context.device.backend.create_signal())
    profiled = counter.notified(6, profile=counter.graph.context.device.backend.create_profile())
    raw = counter.graph.execute_async({"x": ramp()}, notify=lambda *end: counter.told.put(end), notify_param=7)
    watched.add_done_callback(called.put)
    woken = threading.Event()
    waiter = threading.Thread(target=lambda: (awaited.result(PATIENCE_S), woken.set()))
    waiter.start()
    while not awaited._wakers:
        pass
    everything = (first, silent, failed, awaited, watched, signalled, profiled, raw)
    counter.end(*[(one, ABORTED if one is failed else 0) for one in everything])
    assert counter.next(6) == [(0, 0), (2, ABORTED), (3, 0), (5, 0), (6, 0), (7, 0)]
    assert called.get(timeout=PATIENCE_S) is watched
    assert woken.wait(PATIENCE_S)
    waiter.join()
    assert failed.cancelled()
    assert [one.done() for one in everything] == [True] * 8
    assert first.record == frames.Record(first.job, 0, 0, 1, 2, 3)
    assert counter.is_at_rest()


def test_outputs_belong_to_each_caller(counter: Counter) -> None:
    one, other = counter.submit(), counter.submit()
    counter.end((one, 0), (other, 0))
    assert one.result() is one.result()
    assert one.result() is not other.result()
    assert one.result()["y"] is counter.y


def test_unknown_and_repeated_ends_are_ignored(counter: Counter) -> None:
    one, other = counter.notified(1), counter.notified(2)
    counter.end((one, 0), (one, 0), (other, 0))
    counter.end((one, 0), (other, ABORTED))
    assert counter.next(2) == [(1, 0), (2, 0)]
    assert other.exception() is None
    assert counter.is_at_rest()
    assert counter.told.empty()


def test_an_instrument_sees_each_end(counter: Counter) -> None:
    seen: list[str] = []

    def hook(name: str) -> Callable[..., object]:
        def call(proceed: Callable[..., object], *arguments: object, **options: object) -> object:
            seen.append(name)
            return proceed(*arguments, **options)

        return call

    with Instrument({"execution_end": hook("end"), "notification": hook("notification")}):
        counter.end(*[(counter.notified(number), 0) for number in range(3)])
    assert counter.next(3) == [(0, 0), (1, 0), (2, 0)]
    assert seen == ["end", "notification"] * 3


def test_a_callback_that_raises_holds_up_no_other(counter: Counter, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object, __: int) -> None:
        raise SystemExit(3)

    with caplog.at_level(logging.ERROR):
        counter.end((counter.submit(notify=fail), 0), (counter.notified(1), 0))
        assert counter.next(1) == [(1, 0)]
        assert counter.is_at_rest()
    assert "raised" in caplog.text


def test_a_blocked_caller_goes_on(counter: Counter) -> None:
    executions = [counter.notified(number) for number in range(20)]
    accepted: queue.SimpleQueue[htp.Execution] = queue.SimpleQueue()
    blocked = threading.Thread(target=lambda: [accepted.put(counter.notified(20 + n)) for n in range(3)])
    blocked.start()
    while not counter.callee.places.waiters:
        pass
    counter.end(*[(one, 0) for one in executions[:5]])
    later = [accepted.get(timeout=PATIENCE_S) for _ in range(3)]
    blocked.join()
    counter.end(*[(one, 0) for one in (*executions[5:], *later)])
    assert counter.next(23) == [(number, 0) for number in range(23)]
    assert counter.is_at_rest()


def test_what_waits_behind_a_running_callback_is_dropped_with_the_rest(
    backend: htp.Backend, caplog: pytest.LogCaptureFixture
) -> None:
    counter = Counter(backend, complete_together)
    notifier, may_go, runs, told = Notifier(), threading.Event(), threading.Event(), []

    def block(_: object, __: int) -> None:
        runs.set()
        may_go.wait(PATIENCE_S)

    def call(notify: Callable[[object, int], object]) -> Call:
        arguments = counter.callee.bindings.arguments({"x": counter.x}, {"y": counter.y})
        return Call(counter.callee, arguments, counter.graph, notify, None)

    notifier.post_ends(deque([call(block), *[call(lambda *end: told.append(end)) for _ in range(2)]]))
    notifier.post_ends(deque([call(lambda *end: told.append(end))]))
    assert runs.wait(PATIENCE_S)
    thread = notifier.thread
    assert thread is not None
    with caplog.at_level(logging.WARNING):
        notifier.close(0.01)
    assert "it and 3 more" in caplog.text
    may_go.set()
    thread.join(PATIENCE_S)
    assert not told


def test_results_are_right_on_a_device_of_its_own(backend: htp.Backend) -> None:
    counter = Counter(backend, complete_together)
    counter.x[...] = ramp()
    executions = [counter.notified(number) for number in range(500)]
    assert counter.next(500) == [(number, 0) for number in range(500)]
    np.testing.assert_array_equal(executions[-1].result()["y"], np.maximum(ramp(), 0))
    while not counter.is_at_rest():  # the thread that ends them may still be at it
        pass
