"""Whatever breaks while the device works for one client ends that request, job or client. The others go on."""

from __future__ import annotations

import errno
import functools
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.device import core as core_module, executions as executions_module, intake as intake_module
from openhtp.device.answers import unexpected
from openhtp.device.contexts import DeviceGraph
from openhtp.device.requests import graphs as graph_requests
from openhtp.device.server import Server
from openhtp.device.sessions import Pieces
from openhtp.sched.actions import ArmTimer, Finish, Grant, Release, Start
from openhtp.sched.events import AbortRequested, ClientAdded, ClientRemoved, StepDone, Submitted, TimerFired
from tests.conftest import ramp, relu_graph
from tests.device.serving import NAME, serving, settled
from tests.waiting import PATIENCE_S

ERRORS = (RuntimeError, MemoryError, RecursionError, struct.error, KeyError, AssertionError)


class Bomb:
    """Stands in for a function, and raises the first time it is called after it was armed."""

    def __init__(self, original: Callable[..., Any], error: type[Exception]) -> None:
        self.original, self.error = original, error
        self.armed = False
        self.went_off = threading.Event()

    def __get__(self, owner: object, kind: type) -> Callable[..., Any]:
        return functools.partial(self, owner)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self.armed:
            self.armed = False
            self.went_off.set()
            raise self.error("by order of a test")
        return self.original(*args, **options)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    with serving() as server:
        yield server


class Client:
    """A program that uses the device."""

    def __init__(self) -> None:
        self.backend = htp.Backend()
        self.device = self.backend.create_device(name=NAME)
        self.context = self.device.create_context()
        self.graph = relu_graph(self.context)

    def works(self) -> None:
        result = self.graph.execute_async({"x": ramp()}).result(PATIENCE_S)["y"]
        np.testing.assert_array_equal(result, np.maximum(ramp(), 0))


@pytest.fixture
def victim(server: Server) -> Iterator[Client]:
    client = Client()
    with client.backend:
        yield client


@pytest.fixture
def neighbour(server: Server) -> Iterator[Client]:
    client = Client()
    with client.backend:
        yield client


def execute(client: Client) -> None:
    """Through the scheduler, as an execution that may time out does."""
    signal = client.backend.create_signal(timeout_us=int(PATIENCE_S * 1e6))
    client.graph.execute_async({"x": ramp()}, signal=signal).result(PATIENCE_S)


def execute_in_a_row(client: Client, server: Server) -> None:
    """Without the scheduler, as executions of a graph that is known to be short."""
    for session in server.core.sessions.values():
        for graph in session.graphs.values():
            graph.expected_ns = 1  # type: ignore[union-attr]
    client.graph.execute_async({"x": ramp()}).result(PATIENCE_S)


def time_out(client: Client) -> None:
    app = client.context.create_app("slow", hvx=1)
    app.run_async(5e6)
    signal = client.backend.create_signal(timeout_us=1000)
    try:
        client.graph.execute_async({"x": ramp()}, signal=signal).result(PATIENCE_S)
    except htp.QnnError as error:
        if "TIMED_OUT" not in error.name:
            raise


def cancel(client: Client) -> None:
    run = client.context.create_app("slow", hvx=1).run_async(5e6)
    run.cancel()
    run.result(PATIENCE_S)


def load(client: Client) -> None:
    relu_graph(client.context, "another")


def inspect(client: Client) -> None:
    client.device.info()


def free(client: Client) -> None:
    client.context.free()


def record(client: Client) -> None:
    from openhtp.rpc import messages as ms

    client.context.opened.link.request(ms.SetTrace(enabled=True))
    execute(client)


def handler(kind: type) -> Callable[[Server], tuple[Any, Any]]:
    return lambda server: (server.core.loop.scheduler._handlers, kind)


def doer(kind: type) -> Callable[[Server], tuple[Any, Any]]:
    return lambda server: (server.core.loop._do, kind)


def part(path: str) -> Callable[[Server], tuple[Any, Any]]:
    def find(server: Server) -> tuple[Any, Any]:
        target: Any = server
        *owners, name = path.split(".")
        for owner in owners:
            target = getattr(target, owner)
        return target, name

    return find


# Where the bomb lies, what the victim does, and what it loses: nothing, the request (or job), or its session.
PLACES: dict[str, tuple[Callable[[Server], tuple[Any, Any]], Callable[[Client], None], str]] = {
    "control request": (part("core.request"), inspect, "request"),
    "control frame": (lambda server: (core_module, "answer"), inspect, "request"),
    "reply": (part("_reply"), inspect, "session"),
    "frame": (part("core.executions.execute"), execute, "session"),
    "binding": (lambda server: (executions_module, "bind_ports"), execute, "request"),
    "cancel": (part("core.executions.cancel"), cancel, "session"),
    "grant": (doer(Grant), execute, "request"),
    "start": (doer(Start), execute, "request"),
    "release": (doer(Release), execute, "request"),
    "timer armed": (doer(ArmTimer), time_out, "request"),
    "step": (part("core.loop._runner.run_one"), execute, "nothing"),
    "step ended": (part("core.executions.step_ended"), execute, "request"),
    "end": (doer(Finish), execute, "session"),
    "report": (lambda server: (DeviceGraph, "give_back"), execute, "request"),
    "flush": (part("_outbox._send_news"), execute, "session"),
    "recording": (part("core.recording._keep"), record, "nothing"),
    "loading": (lambda server: (graph_requests, "make_ready"), load, "request"),
    "loader completion": (lambda server: (graph_requests, "loaded"), load, "request"),
    "slow work": (lambda server: (Pieces, "take"), load, "request"),
    "scheduler, submission": (handler(Submitted), execute, "session"),
    "scheduler, step": (handler(StepDone), execute, "session"),
    "scheduler, timer": (handler(TimerFired), time_out, "session"),
    "scheduler, abort": (handler(AbortRequested), cancel, "session"),
    "scheduler, addition": (handler(ClientAdded), load, "session"),
    "scheduler, removal": (handler(ClientRemoved), free, "nothing"),
    "turn": (part("core.loop._next_due"), execute, "nothing"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_failure_is_its_owners(
    place: str, server: Server, victim: Client, neighbour: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, act, loses = PLACES[place]
    error = ERRORS[list(PLACES).index(place) % len(ERRORS)]
    target, name = find(server)
    is_table = isinstance(target, dict)
    bomb = Bomb(target[name] if is_table else getattr(target, name), error)
    (monkeypatch.setitem if is_table else monkeypatch.setattr)(target, name, bomb)
    neighbour.works()
    bomb.armed = True
    caught: htp.QnnError | None = None
    try:
        act(victim)
    except htp.QnnError as failure:
        caught = failure
    assert bomb.went_off.wait(PATIENCE_S)
    if loses == "session":
        assert isinstance(caught, htp.DeviceLost)
    else:
        assert (caught is not None) == (loses == "request")
        assert not isinstance(caught, htp.DeviceLost)
    settled(server)
    neighbour.works()
    server.core.loop.scheduler.check()
    assert len(server.core.executions.jobs) <= 1  # the app that runs by the clock
    assert neighbour.device.restarts == 0
    if loses == "session":
        fresh = relu_graph(victim.device.create_context())
        fresh.execute({"x": ramp()})
    elif act is not free:
        assert victim.device.restarts == 0


@pytest.mark.parametrize(
    ("find", "is_lost"),
    [
        (part("_intake._take"), True),
        (lambda server: (intake_module, "bind_ports"), False),
        (lambda server: (intake_module, "computed"), False),
        (lambda server: (DeviceGraph, "give_back"), False),
    ],
)
def test_a_failure_in_a_row_is_its_owners(
    find: Callable[[Server], tuple[Any, str]],
    is_lost: bool,
    server: Server,
    victim: Client,
    neighbour: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, name = find(server)
    bomb = Bomb(getattr(target, name), RuntimeError)
    monkeypatch.setattr(target, name, bomb)
    neighbour.works()
    bomb.armed = True
    caught: htp.QnnError | None = None
    try:
        execute_in_a_row(victim, server)
    except htp.QnnError as failure:
        caught = failure
    assert isinstance(caught, htp.DeviceLost) == is_lost
    assert bomb.went_off.is_set()
    settled(server)
    neighbour.works()
    server.core.loop.scheduler.check()
    assert not server.core.executions.jobs
    assert neighbour.device.restarts == 0


def test_the_neighbours_of_a_failed_action_are_served(server: Server, victim: Client, neighbour: Client) -> None:
    """One event of the scheduler has actions for several: the victim's fails, the neighbour's is done."""
    app = victim.context.create_app("app", hvx=1)
    run = app.run_async(50_000)
    waiting = neighbour.graph.execute_async({"x": ramp()})
    bomb = Bomb(server.core.executions.released, RuntimeError)
    server.core.executions.released = bomb  # type: ignore[method-assign]
    bomb.armed = True
    with pytest.raises(htp.QnnError, match="bug of openhtp"):
        run.result(PATIENCE_S)
    waiting.result(PATIENCE_S)
    assert bomb.went_off.is_set()


def test_dropping_a_client_that_cannot_be_removed(
    server: Server, victim: Client, neighbour: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its graph is expelled, and what it ran on is the neighbour's."""
    handlers = server.core.loop.scheduler._handlers
    bomb = Bomb(handlers[ClientRemoved], KeyError)
    monkeypatch.setitem(handlers, ClientRemoved, bomb)
    victim.context.create_app("app", hvx=1).run_async(9e8)
    waiting = neighbour.graph.execute_async({"x": ramp()})
    bomb.armed = True
    victim.backend.free()
    waiting.result(PATIENCE_S)
    assert bomb.went_off.is_set()
    settled(server)
    server.core.loop.scheduler.check()
    assert len(server.core.sessions) == 1


def test_a_device_that_has_used_up_its_descriptors_is_no_bug() -> None:
    error = unexpected("LoadGraphs", OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    assert (type(error), error.code) == (htp.ResourceError, 1010)
    assert isinstance(unexpected("LoadGraphs", OSError(errno.ENOENT, "gone")), htp.InternalError)
