"""Orders of clients in this process are computed in a row; whatever else comes finds them with the scheduler."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import openhtp as htp
from openhtp.core import status as st
from openhtp.core.errors import ExecutionError
from openhtp.device.contexts import DeviceGraph
from openhtp.device.direct import LONGEST_IN_ROW_NS
from openhtp.device.executions import BoundOrder
from openhtp.rpc import messages as ms
from openhtp.rpc.frames import Record
from openhtp.runtime.calls.bound_call import BoundCall
from openhtp.runtime.calls.execution import Execution
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S

STEPS = 3
DONE, ABORTED = st.QNN_SUCCESS.code, st.QNN_GRAPH_ERROR_ABORTED.code


def nothing() -> None:
    """What most steps do."""


class OrderEnds:
    """Receives what is told of orders, in order."""

    def __init__(self) -> None:
        self.all: queue.SimpleQueue[tuple[int, int, str]] = queue.SimpleQueue()
        self.expected_jobs: list[int] = []

    def expected(self, job: int, at_ns: int) -> None:
        self.expected_jobs.append(job)

    def report(self, record: Record, extra: bytes = b"") -> None:
        self.all.put((record.job, record.status, ""))

    def report_failure(self, record: Record, text: str) -> None:
        self.all.put((record.job, record.status, text))

    def next(self, count: int) -> list[tuple[int, int, str]]:
        return [self.all.get(timeout=PATIENCE_S) for _ in range(count)]


class OrderDesk:
    """Gives orders to the row of an NPU in this process. What a step does is up to the test."""

    def __init__(self, device: htp.Device) -> None:
        host = device.link.lease.host  # type: ignore[attr-defined]
        self.device, self.core, self.row = device, host.core, host.row
        self.ends = OrderEnds()
        self.steps: list[tuple[int, int]] = []
        self.session = next(iter(self.core.sessions.values()))

    def graph(self, name: str, **options: object) -> DeviceGraph:
        graph = relu_graph(self.device.create_context(**options), name, **options)  # type: ignore[arg-type]
        assert graph.loaded is not None
        found = self.session.graphs[graph.loaded.callee.number]
        assert isinstance(found, DeviceGraph)
        found.steps = STEPS
        return found

    def order(self, graph: DeviceGraph, job: int, at_step: Callable[[], object] = nothing, **more: int) -> None:
        """On the loop's thread. ``at_step`` is called in the first step."""
        desk = self

        class Scripted:
            def step(self, index: int) -> None:
                desk.steps.append((job, index))
                if index == 0:
                    at_step()

        order = BoundOrder(job, graph, Scripted(), STEPS, **more)  # type: ignore[arg-type]
        self.row.take(self.session, self.ends, order)

    def at_once(self, act: Callable[[], object]) -> object:
        """Do this on the loop's thread, without a turn of the loop in between."""
        answer: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.core.post(lambda: answer.put(act()))
        return answer.get(timeout=PATIENCE_S)

    def with_the_scheduler(self) -> int:
        return len(self.core.executions.jobs)


@pytest.fixture
def desk(backend: htp.Backend, monkeypatch: pytest.MonkeyPatch) -> OrderDesk:
    monkeypatch.setattr("openhtp.device.loop.POLL_INTERVAL_NS", 0)  # it looks after every step
    return OrderDesk(backend.create_device(host="thread"))


def steps_of(*jobs: int) -> list[tuple[int, int]]:
    """All steps of these, one after the other."""
    return [(job, step) for job in jobs for step in range(STEPS)]


def test_the_scheduler_is_not_asked_about_orders_of_one_priority(desk: OrderDesk) -> None:
    first, second = desk.graph("first"), desk.graph("second")
    seen: list[int] = []

    def act() -> int:
        for job, graph in enumerate([first, second, first], 1):
            desk.order(graph, job, lambda: seen.append(desk.with_the_scheduler()))
        return desk.with_the_scheduler()

    assert desk.at_once(act) == 0
    assert desk.ends.next(3) == [(job, DONE, "") for job in (1, 2, 3)]
    assert desk.steps == steps_of(1, 2, 3)
    assert seen == [0, 0, 0]
    assert first.queued_started


def test_callers_do_not_wait_for_the_seat_of_a_loop_that_computes(desk: OrderDesk) -> None:
    graph, seat = desk.graph("g"), desk.device.link.lease.host.seat  # type: ignore[attr-defined]
    seen: list[bool] = []
    desk.at_once(lambda: desk.order(graph, 1, lambda: seen.append(seat.soon_free)))
    desk.ends.next(1)
    assert desk.at_once(lambda: seat.soon_free)
    assert seen == [False]


def test_an_order_that_comes_meanwhile_has_its_turn(desk: OrderDesk) -> None:
    graph = desk.graph("g")
    seen: list[int] = []

    def another() -> None:
        desk.core.post(lambda: desk.order(graph, 2, lambda: seen.append(desk.with_the_scheduler())))

    desk.at_once(lambda: desk.order(graph, 1, another))
    assert [job for job, _, _ in desk.ends.next(2)] == [1, 2]
    assert desk.steps == steps_of(1, 2)
    assert seen == [0]


def test_a_more_urgent_order_comes_first_at_the_end_of_a_step(desk: OrderDesk) -> None:
    low, high = desk.graph("low", priority="low"), desk.graph("high", priority="high")

    def urgent() -> None:
        desk.core.post(lambda: desk.order(high, 9))

    def act() -> None:
        desk.order(low, 1, urgent)
        desk.order(low, 2)

    desk.at_once(act)
    assert [job for job, _, _ in desk.ends.next(3)] == [9, 1, 2]
    assert desk.steps == [(1, 0), *steps_of(9), (1, 1), (1, 2), *steps_of(2)]


def test_an_abort_ends_the_order_under_way_with_its_step(desk: OrderDesk) -> None:
    graph = desk.graph("g")

    def abort() -> None:
        desk.core.post(lambda: desk.core.executions.cancel(desk.session, 1))

    def act() -> None:
        desk.order(graph, 1, abort)
        desk.order(graph, 2)

    desk.at_once(act)
    assert [(job, status) for job, status, _ in desk.ends.next(2)] == [(1, ABORTED), (2, DONE)]
    assert desk.steps == [(1, 0), *steps_of(2)]


def test_an_abort_ends_an_order_that_waits(desk: OrderDesk) -> None:
    graph = desk.graph("g")

    def act() -> None:
        desk.order(graph, 1)
        desk.order(graph, 2)
        desk.core.executions.cancel(desk.session, 2)

    desk.at_once(act)
    assert {job: status for job, status, _ in desk.ends.next(2)} == {1: DONE, 2: ABORTED}
    assert desk.steps == steps_of(1)


def test_a_request_finds_all_of_them_with_the_scheduler(desk: OrderDesk) -> None:
    graph = desk.graph("g")

    def act() -> object:
        for job in (1, 2, 3):
            desk.order(graph, job)
        assert isinstance(desk.core.request(desk.session, ms.Inspect(), []), ms.Reply)
        return desk.session.describe()["pending"]

    assert desk.at_once(act) == 3
    assert [job for job, _, _ in desk.ends.next(3)] == [1, 2, 3]


@pytest.mark.parametrize("more", [{"timeout_at": 2**62}, {"deadline_at": 2**62}, {"profile_level": 2}])
def test_what_somebody_has_to_watch_goes_to_the_scheduler(desk: OrderDesk, more: dict[str, int]) -> None:
    graph = desk.graph("g")

    def act() -> int:
        desk.order(graph, 1)
        desk.order(graph, 2, **more)
        return desk.with_the_scheduler()

    assert desk.at_once(act) == 2
    assert [job for job, _, _ in desk.ends.next(2)] == [1, 2]


def test_a_graph_that_takes_long_goes_to_the_scheduler(desk: OrderDesk) -> None:
    graph = desk.graph("g")
    graph.last_run_ns = LONGEST_IN_ROW_NS + 1

    def act() -> int:
        desk.order(graph, 1)
        return desk.with_the_scheduler()

    assert desk.at_once(act) == 1
    desk.ends.next(1)


def test_a_step_that_fails_is_its_own_orders(desk: OrderDesk) -> None:
    graph = desk.graph("g")

    def fail() -> None:
        raise ExecutionError("by order of a test")

    def act() -> None:
        desk.order(graph, 1, fail)
        desk.order(graph, 2)

    desk.at_once(act)
    failed, fine = desk.ends.next(2)
    assert (failed[0], fine) == (1, (2, DONE, ""))
    assert failed[1] != DONE
    assert "by order of a test" in failed[2]
    assert desk.steps == [(1, 0), *steps_of(2)]


def test_nothing_is_computed_for_a_client_that_has_gone(desk: OrderDesk) -> None:
    graph = desk.graph("g")

    def act() -> None:
        desk.order(graph, 1, lambda: desk.core.post(lambda: desk.core.start_closing(desk.session)))
        desk.order(graph, 2)

    desk.at_once(act)
    assert desk.at_once(desk.with_the_scheduler) == 0
    assert desk.steps[0] == (1, 0)
    assert (2, 0) not in desk.steps
    assert desk.ends.all.empty()


def test_an_end_is_expected_once_it_is_known_how_long_a_run_takes(desk: OrderDesk) -> None:
    graph = desk.graph("g")
    desk.at_once(lambda: [desk.order(graph, job) for job in (1, 2)])
    desk.ends.next(2)
    assert desk.ends.expected_jobs == [2]


class QueuedCalls:
    """Asynchronous calls on a client's arrays, while the loop is kept from taking them in."""

    def __init__(self, graph: htp.Graph, device: htp.Device) -> None:
        self.graph, self.link = graph, device.link
        self.told: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self.outputs: dict[int, np.ndarray] = {}
        self._gate: queue.SimpleQueue[None] = queue.SimpleQueue()

    def queue(self, numbers: range) -> list[Execution]:
        """Their executions; each notifies with its number. They wait until ``let_go``."""
        at_the_gate: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.link._core.post(lambda: (at_the_gate.put(None), self._gate.get()))  # type: ignore[attr-defined]
        at_the_gate.get(timeout=PATIENCE_S)
        for number in numbers:
            self.outputs[number] = np.zeros_like(ramp())
            call = BoundCall(self.graph, {"x": ramp()}, {"y": self.outputs[number]})
            call.run_async(lambda _, code, number=number: self.told.put((number, code)))  # type: ignore[misc]
        return list(self.link._pending.values())  # type: ignore[attr-defined]

    def let_go(self) -> None:
        self._gate.put(None)

    def ends(self, count: int) -> dict[int, int]:
        """The status of each, which must be notified once."""
        ends = [self.told.get(timeout=PATIENCE_S) for _ in range(count)]
        assert len(dict(ends)) == count
        return dict(ends)


@pytest.fixture
def calls(backend: htp.Backend) -> Iterator[QueuedCalls]:
    device = backend.create_device(host="thread")
    calls = QueuedCalls(relu_graph(device.create_context(queue_depth=10)), device)
    yield calls
    calls.let_go()  # for a test that has failed before it did


def test_queued_calls_are_notified_once_and_in_order(calls: QueuedCalls, backend: htp.Backend) -> None:
    calls.queue(range(10))
    calls.let_go()
    assert list(calls.ends(10).items()) == [(number, DONE) for number in range(10)]
    backend.free()
    assert calls.told.empty()


def test_a_call_that_is_cancelled_in_the_row_is_notified_once(calls: QueuedCalls, backend: htp.Backend) -> None:
    executions = calls.queue(range(5))
    assert executions[3].cancel()
    calls.let_go()
    ends = calls.ends(5)
    assert ends.pop(3) == ABORTED
    assert set(ends.values()) == {DONE}
    backend.free()
    assert calls.told.empty()


def test_an_interrupted_call_in_the_row_ends_before_its_arrays_are_left(calls: QueuedCalls) -> None:
    """``settle`` finds it, although the scheduler does not know it."""
    first, second = calls.queue(range(2))
    assert calls.link.settle(second)
    calls.let_go()
    assert calls.ends(2) == {0: DONE, 1: ABORTED}
    assert first.done()
    calls.queue(range(0))  # the loop has come to whatever is left
    assert [calls.outputs[number].any() for number in (0, 1)] == [True, False]


@pytest.mark.parametrize("end", ["context", "backend"])
def test_a_context_that_is_freed_with_work_in_the_row(calls: QueuedCalls, backend: htp.Backend, end: str) -> None:
    calls.queue(range(5))
    calls.let_go()
    (calls.graph.context if end == "context" else backend).free()
    calls.ends(5)
    if end == "context":
        backend.free()
    assert calls.told.empty()
