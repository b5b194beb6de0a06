"""Slow work: in order within a context, told of while it is under way, and given back when nobody wants it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import openhtp as htp
from openhtp.device import loading
from openhtp.device.contexts import DeviceContext
from openhtp.device.server import Server
from openhtp.device.sessions import Session
from openhtp.device.tasks import Pool, Task, TaskState
from openhtp.rpc import channel, messages as ms
from openhtp.rpc.shm import SharedBuffer
from tests.conftest import relu_graph
from tests.device.serving import NAME, serving, settled
from tests.device.test_process import Raw
from tests.waiting import PATIENCE_S, wait_until

SESSION = Session(1, pid=1, label="")


def context(number: int) -> DeviceContext:
    return DeviceContext(number, SESSION, 1, 1)


class Kept:
    """A task whose parts write down that they were called."""

    def __init__(self, work: Callable[[Task[int]], int], finish: Callable[[int], ms.Reply] | None = None) -> None:
        self.log: list[Any] = []
        self.task = Task(
            "counting",
            context(1),
            work=work,
            finish=finish or (lambda result: ms.Reply(value=result)),
            discard=self.log.append,
            undo=lambda: self.log.append("undone"),
        )


def test_a_result_becomes_the_answer() -> None:
    kept = Kept(lambda task: 3)
    kept.task.run()
    assert kept.task.conclude() == ms.Reply(value=3)
    assert kept.log == []
    assert kept.task.state is TaskState.OVER


@pytest.mark.parametrize("error", [htp.InvalidArgument("no"), RuntimeError("no")])
def test_a_failure_becomes_the_answer(error: Exception) -> None:
    def fail(argument: Any) -> Any:
        raise error

    for kept in (Kept(fail), Kept(lambda task: 3, fail)):
        kept.task.run()
        answer = kept.task.conclude()
        assert isinstance(answer, ms.Reply)
        assert "no" in answer.error
        assert kept.log == ["undone"]


def test_a_task_that_is_cancelled_early_does_nothing() -> None:
    kept = Kept(lambda task: kept.log.append("worked") or 3)
    kept.task.cancel()
    kept.task.run()
    answer = kept.task.conclude()
    assert isinstance(answer, ms.Reply)
    assert "freed while counting" in answer.error
    assert kept.log == ["undone"]


def test_a_task_that_is_cancelled_on_the_way_ends_where_it_looks() -> None:
    def work(task: Task[int]) -> int:
        task.advance(1, 2, "half")
        assert task.describe() == {"what": "counting", "state": "running", "done": 1, "total": 2, "now": "half"}
        task.cancel()
        task.check()
        raise AssertionError("it went on")

    kept = Kept(work)
    kept.task.run()
    kept.task.conclude()
    assert kept.log == ["undone"]
    assert kept.task.describe()["state"] == "cancelled"


def test_a_result_that_comes_too_late_is_discarded() -> None:
    kept = Kept(lambda task: 3)
    kept.task.run()
    kept.task.cancel()
    kept.task.conclude()
    assert kept.log == [3, "undone"]


def test_tasks_of_a_context_are_done_in_order_and_those_of_others_beside_them() -> None:
    done: list[str] = []
    goes_on, other_is_done, all_are_done = threading.Event(), threading.Event(), threading.Event()

    def then(name: str, event: threading.Event | None = None) -> Callable[[], None]:
        return lambda: (done.append(name), event and event.set())[0]

    def task(where: DeviceContext, work: Callable[[], object] = lambda: None) -> Task[object]:
        return Task("waiting", where, work=lambda task: work(), finish=lambda result: ms.Reply())

    pool = Pool(lambda call: call())
    one, two = context(1), context(2)
    pool.submit(task(one, lambda: goes_on.wait(PATIENCE_S)), then("first"))
    pool.submit(task(one), then("second"))
    pool.submit(task(two), then("other", other_is_done))
    pool.submit(task(one), then("third", all_are_done))
    assert other_is_done.wait(PATIENCE_S)
    goes_on.set()
    assert all_are_done.wait(PATIENCE_S)
    assert done == ["other", "first", "second", "third"]
    pool.close()


def test_an_end_that_cannot_be_told_does_not_end_the_pool() -> None:
    told = threading.Event()

    def post(call: Callable[[], None]) -> None:
        call()

    def fail() -> None:
        raise OSError("by order of a test")

    pool = Pool(post, threads=1)
    for then in (fail, told.set):
        pool.submit(Task("waiting", context(1), work=lambda task: 0, finish=lambda _: ms.Reply()), then)
    assert told.wait(PATIENCE_S)
    pool.close()


# On a device


class Gate:
    """Holds up the loading of the second graph until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self.made: list[loading.Ready] = []
        real = loading._make_ready

        def make(*args: Any) -> loading.Ready:
            if self.made:
                self.reached.set()
                assert self.open.wait(PATIENCE_S)
            self.made.append(real(*args))
            return self.made[-1]

        monkeypatch.setattr(loading, "_make_ready", make)

    def all_closed(self) -> bool:
        return all(ready.loaded._staged is None for ready in self.made)  # type: ignore[attr-defined]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def binary(shared_device: htp.Device) -> bytes:
    with shared_device.create_context() as made:
        for name in ("a", "b", "c"):
            relu_graph(made, name)
        return made.get_binary()


def start_loading(raw: Raw, binary: bytes) -> int:
    """Ask, and do not wait for the answer."""
    number = raw.ask(ms.CreateContext(queue_depth=4, priority=100)).value
    graphs = [ms.WantedGraph(place=place, priority=100) for place in range(3)]
    buffer = SharedBuffer.holding([binary])
    message = ms.LoadGraphs(number=77, context=number, nbytes=len(binary), graphs=graphs)
    channel.send(raw.control, ms.encode(message), (buffer.fd,))
    buffer.close()
    return number


def test_freeing_a_context_cancels_what_is_loaded_into_it(
    server: Server, binary: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, raw = Gate(monkeypatch), Raw(NAME)
    number = start_loading(raw, binary)
    assert gate.reached.wait(PATIENCE_S)
    (session,) = raw.ask(ms.Inspect()).info["sessions"]  # type: ignore[misc]
    assert session["tasks"] == [{"what": "loading", "state": "running", "done": 1, "total": 3, "now": "b"}]
    assert raw.ask(ms.FreeContext(context=number)).error == ""
    gate.open.set()
    refusal = ms.decode_reply(raw.control.recv(65536))
    assert refusal.number == 77
    assert "freed while loading" in refusal.error
    assert len(gate.made) == 2, "the third was not begun"
    assert gate.all_closed()
    (session,) = raw.ask(ms.Inspect()).info["sessions"]  # type: ignore[misc]
    assert (session["tasks"], session["graphs"], session["bytes"]) == ([], [], 0)
    raw.close()


def test_a_client_that_leaves_cancels_its_tasks(
    server: Server, binary: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, raw = Gate(monkeypatch), Raw(NAME)
    start_loading(raw, binary)
    assert gate.reached.wait(PATIENCE_S)
    (session,) = server.core.sessions.values()
    (task,) = session.tasks
    raw.close()
    settled(server)
    other = Raw(NAME)  # whose coming is served after the going of the first
    other.ask(ms.Inspect())
    settled(server)
    assert task.cancelled
    gate.open.set()
    wait_until(lambda: not session.tasks)
    settled(server)
    assert len(gate.made) == 2
    assert gate.all_closed()
    assert session.ledger.used == 0
    other.close()


# A context that is made with its graphs


def start_opening(raw: Raw, binary: bytes, *, queue_depth: int = 4) -> None:
    """Ask for a context with three graphs, and do not wait for the answer."""
    message = ms.LoadGraphs(
        number=77,
        context=0,
        nbytes=len(binary),
        graphs=[ms.WantedGraph(place=place, priority=100) for place in range(3)],
        opening=ms.CreateContext(queue_depth=queue_depth, priority=100, stored=True),
    )
    buffer = SharedBuffer.holding([binary])
    channel.send(raw.control, ms.encode(message), (buffer.fd,))
    buffer.close()


def contexts(raw: Raw) -> int:
    (session,) = raw.ask(ms.Inspect()).info["sessions"]  # type: ignore[misc]
    return session["contexts"]  # type: ignore[no-any-return]


def test_one_message_makes_a_context_and_its_graphs(server: Server, binary: bytes) -> None:
    raw = Raw(NAME)
    start_opening(raw, binary)
    made = ms.decode_reply(raw.control.recv(65536))
    assert (made.error, len(made.graphs)) == ("", 3)
    assert contexts(raw) == 1
    assert raw.ask(ms.FreeContext(context=made.value)).error == ""
    assert contexts(raw) == 0
    raw.close()


def test_nothing_is_left_of_a_context_whose_graphs_cannot_be_loaded(server: Server, binary: bytes) -> None:
    raw = Raw(NAME)
    for data, depth, why in (
        (binary[:-1] + b"\x01", 4, "padding"),
        (binary[: len(binary) // 2], 4, "it was cut"),
        (binary, 0, "queue depth"),
    ):
        start_opening(raw, data, queue_depth=depth)
        assert why in ms.decode_reply(raw.control.recv(65536)).error
        assert contexts(raw) == 0
    raw.close()


def test_nothing_is_left_of_a_context_whose_making_is_cancelled(
    server: Server, binary: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, raw = Gate(monkeypatch), Raw(NAME)
    start_opening(raw, binary)
    assert gate.reached.wait(PATIENCE_S)
    assert contexts(raw) == 1
    raw.ask(ms.Cancel(request=77))
    gate.open.set()
    assert "cancelled" in ms.decode_reply(raw.control.recv(65536)).error
    assert gate.all_closed()
    assert contexts(raw) == 0
    raw.close()
