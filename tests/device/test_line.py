"""Frames of known memory wait in a line of the C side. What comes of them is the same without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import openhtp as htp
from openhtp.core import status as st
from openhtp.core.errors import ExecutionError
from openhtp.device import intake
from openhtp.device.connection import Connection, ServedDuct
from openhtp.device.contexts import DeviceGraph
from openhtp.device.server import Server
from openhtp.engine.native import MOST_KNOWN, NativeSession, native
from openhtp.engine.opened import BoundSession
from openhtp.engine.sessions import session_options
from openhtp.rpc import channel, frames, messages as ms
from tests.conftest import ramp, relu_graph
from tests.device.serving import NAME, serving, settled
from tests.device.test_intake import Desk
from tests.waiting import PATIENCE_S

DONE = st.QNN_SUCCESS.code


@pytest.fixture(params=["C", "Python"])
def has_line(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the C side takes part."""
    if request.param == "C" and native() is None:
        pytest.skip("the C side was not compiled")
    if request.param == "Python":
        monkeypatch.setattr(intake, "native", lambda: None)
    return bool(request.param == "C")


@pytest.fixture
def server(has_line: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    with serving() as server:
        yield server


class DuctDesk(Desk):
    """Sends frames on a duct, and has the server read all of them in one turn of the loop."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.ours, theirs = channel.socket_pair()
        self.ours.settimeout(PATIENCE_S)
        theirs.setblocking(False)
        control, self._other = channel.socket_pair()
        self.connection = Connection(control)
        duct = self.duct = ServedDuct(theirs, lambda duct: server._outbox.tell(self.connection, duct))
        self.connection.ducts.append(duct)

    def send(self, graph: htp.Graph, bindings: bytes, *jobs: int, flags: int = 0, timeout_at: int = 0) -> None:
        assert graph.loaded is not None
        for job in jobs:
            head = (
                frames.EXECUTE,
                flags,
                len(bindings) // 16,
                graph.loaded.callee.number,
                1,
                0,
                job,
                timeout_at,
                0,
            )
            self.ours.send(frames.EXECUTE_HEAD.pack(*head) + bindings)

    def read(self) -> int:
        """On the loop's thread: read what was sent; returns how many are in the line now."""
        self.connection.session = self.session
        self.server._intake.new_turn()
        self.server._intake.serve(self.connection, self.duct)
        return self.in_line

    @property
    def in_line(self) -> int:
        return 0 if self.row._line is None else self.row._line.state.count

    def get_known(self, graph: htp.Graph, bindings: bytes) -> None:
        """Have the row compute an execution on this memory."""
        self.send(graph, bindings, 1)
        self.at_once(self.read)
        assert self.ended(1) == [(1, DONE)]
        self.at_once(lambda: setattr(self.on_device(graph), "expected_ns", 1))

    def ended(self, count: int) -> list[tuple[int, int]]:
        """The next ends that were reported."""
        ends: list[tuple[int, int]] = []
        while len(ends) < count:
            packet = self.ours.recv(channel.MAX_MESSAGE)
            if packet[0] == frames.DONE:
                records = frames.RECORD.iter_unpack(packet[frames.BATCH_HEAD.size :])
                ends += [(fields[0], fields[1]) for fields in records]
            else:
                job, status, *_ = frames.RECORD.unpack_from(packet, frames.BATCH_HEAD.size)
                ends.append((job, status))
        return ends

    def close(self) -> None:
        for sock in (self.ours, self.duct.sock, self.connection.control, self._other):
            sock.close()


@pytest.fixture
def desk(server: Server) -> Iterator[DuctDesk]:
    desk = DuctDesk(server)
    with desk.device.backend:
        yield desk
        desk.close()


def test_executions_on_known_memory_wait_in_the_line(desk: DuctDesk, has_line: bool) -> None:
    graph, bindings, y = desk.graph("g")
    desk.get_known(graph, bindings)
    y[...] = 9
    desk.send(graph, bindings, *range(2, 12))
    assert desk.at_once(desk.read) == (10 if has_line else 0)
    assert desk.ended(10) == [(job, DONE) for job in range(2, 12)]
    np.testing.assert_array_equal(y, np.maximum(ramp(), 0))
    assert desk.session.executions == 11


@pytest.mark.parametrize("flags", [0, frames.FLAG_MANY])
def test_ends_of_a_client_with_many_under_way_wait_for_further_ones(desk: DuctDesk, flags: int) -> None:
    graph, bindings, _ = desk.graph("g")
    desk.get_known(graph, bindings)
    desk.send(graph, bindings, 2, 3, 4, flags=flags)

    def act() -> bool:
        desk.read()
        desk.row._run()
        desk.server._held_until_ns = 2**62
        desk.server.flush()
        return bool(desk.server._outbox.pending)

    assert desk.at_once(act) == bool(flags)
    # They do not wait for ever: nothing more comes.
    assert desk.ended(3) == [(2, DONE), (3, DONE), (4, DONE)]


def test_an_end_does_not_wait_while_others_keep_the_loop_busy(desk: DuctDesk) -> None:
    graph, bindings, _ = desk.graph("g")
    desk.get_known(graph, bindings)
    desk.send(graph, bindings, 2, flags=frames.FLAG_MANY)

    def act() -> list[bool]:
        desk.read()
        desk.row._run()
        held = []
        for until_ns in (2**62, desk.core.clock.now()):
            desk.server._held_until_ns = until_ns
            desk.server.flush()
            held.append(bool(desk.server._outbox.pending))
        return held

    assert desk.at_once(act) == [True, False]
    assert desk.ended(1) == [(2, DONE)]


def test_no_end_waits_while_the_scheduler_has_work(desk: DuctDesk) -> None:
    graph, bindings, _ = desk.graph("g")
    other, other_bindings, _ = desk.graph("other")
    desk.get_known(graph, bindings)
    desk.send(graph, bindings, 2, flags=frames.FLAG_MANY)

    def act() -> list[bool]:
        desk.read()
        desk.row._run()
        desk.server._held_until_ns = 2**62
        desk.server.flush()
        before = bool(desk.server._outbox.pending)
        desk.take(other, other_bindings, 9, timeout_at=2**62)
        desk.server.flush()
        return [before, bool(desk.server._outbox.pending)]

    assert desk.at_once(act) == [True, False]
    assert desk.ended(1) == [(2, DONE)]
    assert desk.ends.next(1) == [(9, DONE, "")]


def test_records_tell_when_each_came_began_and_ended(desk: DuctDesk) -> None:
    graph, bindings, _ = desk.graph("g")
    desk.get_known(graph, bindings)
    before = desk.core.clock.now()
    desk.send(graph, bindings, 2, 3)
    desk.at_once(desk.read)
    records: list[frames.Record] = []
    while len(records) < 2:
        packet = desk.ours.recv(channel.MAX_MESSAGE)
        records += [frames.Record(*fields) for fields in frames.RECORD.iter_unpack(packet[4:])]
    first, second = records
    times = (before, first.received_ns, first.started_ns, first.finished_ns, second.started_ns, second.finished_ns)
    assert list(times) == sorted(times)
    assert before < second.received_ns <= second.started_ns
    assert desk.core.clock.now() > second.finished_ns
    assert first[6:] == second[6:] == (0, 0, 0)


def test_a_more_urgent_graph_overtakes_the_line(desk: DuctDesk, has_line: bool) -> None:
    low, low_bindings, _ = desk.graph("low", priority="low")
    high, high_bindings, _ = desk.graph("high", priority="high")
    desk.get_known(low, low_bindings)
    desk.send(low, low_bindings, 2, 3, 4)
    desk.send(high, high_bindings, 9)

    def act() -> tuple[int, int]:
        return desk.read(), len(desk.core.executions.jobs)

    assert desk.at_once(act) == (0, 4)
    assert [job for job, _ in desk.ended(4)] == [9, 2, 3, 4]


def test_a_more_urgent_graph_is_seen_while_the_line_is_computed(
    desk: DuctDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop looks at its inbox between two pieces of the line, as it does between others."""
    low, low_bindings, _ = desk.graph("low", priority="low")
    high, high_bindings, _ = desk.graph("high", priority="high")
    desk.get_known(low, low_bindings)
    monkeypatch.setattr(intake, "POLL_INTERVAL_NS", 0)
    monkeypatch.setattr(intake, "RECORDS_PER_PACKET", 1)
    monkeypatch.setattr("openhtp.device.loop.POLL_INTERVAL_NS", 0)
    looks: list[int] = []
    original = desk.server.poll

    def poll(timeout_ns: int | None) -> None:
        looks.append(len(desk.core.executions.jobs))
        if len(looks) == 3:
            desk.take(high, high_bindings, 99)
        original(timeout_ns)

    def act() -> None:
        desk.read()
        monkeypatch.setattr(desk.server, "poll", poll)

    desk.send(low, low_bindings, *range(2, 12))
    desk.at_once(act)
    assert desk.ends.next(1) == [(99, DONE, "")]
    assert [job for job, _ in desk.ended(10)] == list(range(2, 12))
    # It came when some of the line were computed, and the rest lined up behind it.
    assert 1 < max(looks) <= 9


def test_a_request_finds_the_line_with_the_scheduler(desk: DuctDesk) -> None:
    graph, bindings, _ = desk.graph("g")
    desk.get_known(graph, bindings)
    desk.send(graph, bindings, 2, 3, 4, flags=frames.FLAG_WAITED)

    def act() -> object:
        desk.read()
        desk.core.request(desk.session, ms.Inspect(), [])
        jobs = desk.core.executions.jobs.values()
        return desk.session.describe()["pending"], [job.waited for job in jobs], desk.in_line

    assert desk.at_once(act) == (3, [True] * 3, 0)
    assert desk.ended(3) == [(2, DONE), (3, DONE), (4, DONE)]


def test_a_cancelled_execution_of_the_line_is_not_computed(desk: DuctDesk) -> None:
    graph, bindings, _ = desk.graph("g")
    desk.get_known(graph, bindings)
    desk.send(graph, bindings, 2, 3, 4)
    desk.ours.send(frames.cancel_frame(4))
    desk.at_once(desk.read)
    assert sorted(desk.ended(3)) == [(2, DONE), (3, DONE), (4, st.QNN_GRAPH_ERROR_ABORTED.code)]


def test_what_the_line_cannot_take_is_taken_in_its_order(desk: DuctDesk) -> None:
    graph, bindings, _ = desk.graph("g")
    desk.get_known(graph, bindings)
    desk.send(graph, bindings, 2, 3)
    desk.send(graph, bindings, 4, timeout_at=2**62)
    desk.send(graph, bindings, 5, 6)
    desk.at_once(desk.read)
    assert desk.ended(5) == [(job, DONE) for job in range(2, 7)]


def test_the_line_is_no_longer_than_the_queue(desk: DuctDesk) -> None:
    graph, bindings, _ = desk.graph("g")
    desk.get_known(graph, bindings)
    depth = desk.on_device(graph).context.queue_depth
    desk.send(graph, bindings, *range(2, depth + 3))
    desk.at_once(desk.read)
    ends = dict(desk.ended(depth + 1))
    assert ends.pop(depth + 2) == st.QNN_GRAPH_ERROR_EXECUTION_ASYNC_FIFO_FULL.code
    assert ends == dict.fromkeys(range(2, depth + 2), DONE)


def test_more_memory_than_the_line_knows(desk: DuctDesk) -> None:
    graph, _, _ = desk.graph("g")
    count = MOST_KNOWN + 5
    memory = graph.context.register_memory(count * 8192)
    assert graph.loaded is not None
    bindings, outputs = [], []
    for number in range(count):
        x = memory.array(graph.inputs[0], offset=number * 8192)
        y = memory.array(graph.outputs[0], offset=number * 8192 + 4096)
        x[...] = ramp() + number
        outputs.append((y, np.maximum(ramp() + number, 0)))
        bindings.append(graph.loaded.callee.bindings.arguments({"x": x}, {"y": y}).packed)
    for turn in range(3):
        for y, _ in outputs:
            y[...] = -1
        for number, binding in enumerate(bindings):
            job = turn * count + number + 1
            desk.send(graph, binding, job)
            desk.at_once(desk.read)
            assert desk.ended(1) == [(job, DONE)]
        for y, expected in outputs:
            np.testing.assert_array_equal(y, expected)


def test_memory_that_is_gone_is_no_longer_known(desk: DuctDesk) -> None:
    graph, bindings, _ = desk.graph("g")
    desk.get_known(graph, bindings)
    number = frames.BINDING.unpack_from(bindings)[1]
    desk.at_once(lambda: desk.core.request(desk.session, ms.DeregisterMemory(memory=number), []))
    desk.send(graph, bindings, 2)
    assert desk.at_once(desk.read) == 0
    ((job, status),) = desk.ended(1)
    assert (job, status) == (2, st.QNN_GRAPH_ERROR_INVALID_TENSOR.code)


def test_nothing_of_a_client_that_has_gone_is_kept(desk: DuctDesk) -> None:
    graph, bindings, _ = desk.graph("g")
    desk.get_known(graph, bindings)
    desk.send(graph, bindings, 2, 3)

    def act() -> tuple[object, int, object]:
        desk.read()
        connection = next(iter(desk.server._connections.values()))
        desk.server._drop(connection)
        return desk.row._known, desk.in_line, desk.row._entries

    assert desk.at_once(act) == (None, 0, {})


def _failing() -> BoundSession:
    """A bound session that fails whenever it is computed: it gathers what is not there."""
    side = native()
    assert side is not None
    nodes = [helper.make_node("Gather", ["data", "places"], ["picked"])]
    ends = [
        helper.make_tensor_value_info(name, kind, [size])
        for name, kind, size in (("data", TensorProto.FLOAT, 2), ("places", TensorProto.INT64, 1))
    ]
    picked = helper.make_tensor_value_info("picked", TensorProto.FLOAT, [1])
    opset = [helper.make_opsetid("", 13)]
    model = helper.make_model(helper.make_graph(nodes, "g", ends, [picked]), opset_imports=opset, ir_version=8)
    session = NativeSession(side, model.SerializeToString(), {}, session_options(1, optimise=False))
    arrays = np.zeros(2, np.float32), np.array([7]), np.zeros(1, np.float32)
    bound = session.bind({"data": arrays[0], "places": arrays[1]}, {"picked": arrays[2]})
    assert bound.call()
    return bound._replace(kept=(bound.kept, arrays))


def test_one_that_fails_in_the_line_is_computed_by_itself(desk: DuctDesk, has_line: bool) -> None:
    if not has_line:
        pytest.skip("without a line nothing fails there")
    graph, bindings, y = desk.graph("g")
    desk.get_known(graph, bindings)
    failing = _failing()
    desk.row._line.state.bound[0] = failing.place
    y[...] = 9
    desk.send(graph, bindings, 2, 3, 4)
    assert desk.at_once(desk.read) == 3
    assert desk.ended(3) == [(2, DONE), (3, DONE), (4, DONE)]
    np.testing.assert_array_equal(y, np.maximum(ramp(), 0))


def test_a_fault_is_met_although_the_memory_is_known(desk: DuctDesk) -> None:
    graph, bindings, _ = desk.graph("g")
    desk.get_known(graph, bindings)
    desk.on_device(graph).fault = (0, ExecutionError("by order of a test"))
    desk.send(graph, bindings, 2, 3)
    assert desk.at_once(desk.read) == 0
    ends = desk.ended(2)
    assert ends[0][0] == 2
    assert ends[0][1] != DONE
    assert ends[1] == (3, DONE)


def test_a_recording_sees_executions_on_known_memory(desk: DuctDesk) -> None:
    graph, bindings, _ = desk.graph("g")
    desk.get_known(graph, bindings)
    desk.at_once(lambda: desk.core.record(enabled=True))
    desk.send(graph, bindings, 2, 3)
    assert desk.at_once(desk.read) == 0
    assert desk.ended(2) == [(2, DONE), (3, DONE)]
    assert desk.core.recording._records


@pytest.mark.parametrize("bad", ["unknown kind", "job used twice", "no head"])
def test_a_malformed_frame_ends_its_own_connection_only(desk: DuctDesk, has_line: bool, bad: str) -> None:
    graph, _, _ = desk.graph("g")
    with htp.Backend() as backend:
        theirs = relu_graph(backend.create_device(name=NAME).create_context())
        memory = theirs.context.register_memory(4096)
        x, y = memory.array(theirs.inputs[0]), memory.array(theirs.outputs[0])
        assert theirs.loaded is not None
        callee = theirs.loaded.callee
        session = desk.core.sessions[callee.link.session]
        found = session.graphs[callee.number]
        assert isinstance(found, DeviceGraph)
        found.expected_ns = 1
        theirs.execute_async({"x": x}, {"y": y}).result()
        bindings = callee.bindings.arguments({"x": x}, {"y": y}).packed

        def frame(job: int) -> bytes:
            head = (frames.EXECUTE, 0, 2, callee.number, 1, 0, job, 0, 0)
            return frames.EXECUTE_HEAD.pack(*head) + bindings

        broken = {"unknown kind": b"\x77" + bytes(71), "job used twice": frame(103), "no head": b"\x01" * 8}[bad]
        data = callee.link._data
        desk.at_once(lambda: [data.send(one) for one in (frame(102), frame(103), broken, frame(104))])
        while callee.link.session in desk.core.sessions:
            settled(desk.server)
        assert session.executions < 4  # not the one behind it
    np.testing.assert_array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))
