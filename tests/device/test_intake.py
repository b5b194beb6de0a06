"""Short executions of one graph are computed in a row, and whatever else comes finds them with the scheduler."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import openhtp as htp
from openhtp.core import status as st
from openhtp.core.errors import ExecutionError
from openhtp.device.contexts import DeviceGraph
from openhtp.device.intake import ExecutionRow
from openhtp.device.server import Server
from openhtp.device.sessions import Session
from openhtp.rpc import frames, messages as ms
from openhtp.rpc.frames import Record
from tests.conftest import ramp, relu_graph
from tests.device.serving import NAME, serving
from tests.waiting import PATIENCE_S


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    with serving() as server:
        yield server


class Ends:
    """Receives the ends of executions, in order."""

    def __init__(self) -> None:
        self.all: queue.SimpleQueue[tuple[int, int, str]] = queue.SimpleQueue()

    def report(self, record: Record, extra: bytes = b"") -> None:
        self.all.put((record.job, record.status, ""))

    def report_failure(self, record: Record, text: str) -> None:
        self.all.put((record.job, record.status, text))

    def next(self, count: int) -> list[tuple[int, int, str]]:
        return [self.all.get(timeout=PATIENCE_S) for _ in range(count)]


class Desk:
    """Gives frames to a server's row, several in one turn of the loop."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.core = server.core
        self.row = server._intake._take.__self__  # type: ignore[attr-defined]
        assert isinstance(self.row, ExecutionRow)
        self.ends = Ends()
        self.device = htp.Backend().create_device(name=NAME)

    def graph(self, name: str, **options: object) -> tuple[htp.Graph, bytes, np.ndarray]:
        """A graph that counts as short, its bindings, and where it writes."""
        context = self.device.create_context(**options)  # type: ignore[arg-type]
        graph = relu_graph(context, name, **options)
        memory = context.register_memory(4096)
        x, y = memory.array(graph.inputs[0]), memory.array(graph.outputs[0])
        x[:] = ramp()
        assert graph.loaded is not None
        self.on_device(graph).expected_ns = 1
        return graph, graph.loaded.callee.bindings.arguments({"x": x}, {"y": y}).packed, y

    @property
    def session(self) -> Session:
        return next(iter(self.core.sessions.values()))

    def on_device(self, graph: htp.Graph) -> DeviceGraph:
        assert graph.loaded is not None
        found = self.session.graphs[graph.loaded.callee.number]
        assert isinstance(found, DeviceGraph)
        return found

    def take(self, graph: htp.Graph, bindings: bytes, job: int, timeout_at: int = 0) -> None:
        assert graph.loaded is not None
        head = (frames.EXECUTE, 0, 2, graph.loaded.callee.number, 1, 0, job, timeout_at, 0)
        self.row.take(self.session, self.ends, frames.EXECUTE_HEAD.pack(*head) + bindings)

    def at_once(self, act: Callable[[], object]) -> object:
        """Do this on the loop's thread, without a turn of the loop in between."""
        answer: queue.SimpleQueue[object] = queue.SimpleQueue()

        def work() -> None:
            try:
                answer.put(act())
            except BaseException as error:
                answer.put(error)

        self.server._post(work)
        found = answer.get(timeout=PATIENCE_S)
        if isinstance(found, BaseException):
            raise found
        return found


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    desk = Desk(server)
    with desk.device.backend:
        yield desk


DONE = st.QNN_SUCCESS.code


def test_the_scheduler_is_not_asked(desk: Desk) -> None:
    graph, bindings, y = desk.graph("g")

    def act() -> tuple[int, int]:
        for job in range(1, 6):
            desk.take(graph, bindings, job)
        return len(desk.core.executions.jobs), desk.on_device(graph).context.pending

    assert desk.at_once(act) == (0, 0)
    assert desk.ends.next(5) == [(job, DONE, "") for job in range(1, 6)]
    np.testing.assert_array_equal(y, np.maximum(ramp(), 0))


def test_a_more_urgent_graph_overtakes_the_row(desk: Desk) -> None:
    low, low_bindings, _ = desk.graph("low", priority="low")
    high, high_bindings, _ = desk.graph("high", priority="high")

    def act() -> int:
        for job in range(1, 4):
            desk.take(low, low_bindings, job)
        desk.take(high, high_bindings, 9)
        return len(desk.core.executions.jobs)

    assert desk.at_once(act) == 4
    assert [job for job, _, _ in desk.ends.next(4)] == [9, 1, 2, 3]


def test_the_row_follows_what_is_queued_of_the_same_graph(desk: Desk) -> None:
    graph, bindings, _ = desk.graph("g")

    def act() -> int:
        desk.take(graph, bindings, 1, timeout_at=2**62)
        desk.take(graph, bindings, 2)
        desk.take(graph, bindings, 3)
        return len(desk.core.executions.jobs)

    assert desk.at_once(act) == 1
    assert [job for job, _, _ in desk.ends.next(3)] == [1, 2, 3]


def test_a_request_finds_all_of_them_with_the_scheduler(desk: Desk) -> None:
    graph, bindings, _ = desk.graph("g")

    def act() -> object:
        for job in range(1, 4):
            desk.take(graph, bindings, job)
        reply = desk.core.request(desk.session, ms.Inspect(), [])
        assert isinstance(reply, ms.Reply)
        return desk.session.describe()["pending"]

    assert desk.at_once(act) == 3
    assert [job for job, _, _ in desk.ends.next(3)] == [1, 2, 3]


def test_a_step_that_fails_is_its_own_executions(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, bindings, _ = desk.graph("g")
    original = DeviceGraph.take_runs
    failing = [False, True, False]

    class Broken:
        def step(self, index: int) -> None:
            raise ExecutionError("by order of a test")

    def take_runs(self: DeviceGraph, key: bytes, make: Callable[[], list[object]]) -> list[object]:
        return [Broken()] if failing.pop(0) else original(self, key, make)  # type: ignore[arg-type, return-value]

    monkeypatch.setattr(DeviceGraph, "take_runs", take_runs)
    desk.at_once(lambda: [desk.take(graph, bindings, job) for job in range(1, 4)])
    first, second, third = desk.ends.next(3)
    assert (first, third) == ((1, DONE, ""), (3, DONE, ""))
    assert second[0] == 2
    assert "by order of a test" in second[2]


def test_what_cannot_be_bound_is_refused(desk: Desk) -> None:
    graph, bindings, _ = desk.graph("g")
    desk.at_once(lambda: [desk.take(graph, bindings, 1), desk.take(graph, b"\xff" * len(bindings), 2)])
    ends = {job: status for job, status, _ in desk.ends.next(2)}
    assert ends[1] == DONE
    assert ends[2] != DONE


def test_the_row_is_no_longer_than_the_queue(desk: Desk) -> None:
    graph, bindings, _ = desk.graph("g")
    depth = desk.on_device(graph).context.queue_depth
    desk.at_once(lambda: [desk.take(graph, bindings, job) for job in range(1, depth + 2)])
    ends = {job: status for job, status, _ in desk.ends.next(depth + 1)}
    assert ends.pop(depth + 1) == st.QNN_GRAPH_ERROR_EXECUTION_ASYNC_FIFO_FULL.code
    assert ends == dict.fromkeys(range(1, depth + 1), DONE)


def test_a_cancelled_execution_of_the_row_is_not_computed(desk: Desk) -> None:
    graph, bindings, _ = desk.graph("g")

    def act() -> None:
        for job in range(1, 4):
            desk.take(graph, bindings, job)
        desk.core.executions.line_up()
        desk.core.executions.cancel(desk.session, 3)

    desk.at_once(act)
    ends = {job: status for job, status, _ in desk.ends.next(3)}
    assert ends == {1: DONE, 2: DONE, 3: st.QNN_GRAPH_ERROR_ABORTED.code}
