"""Contexts from a list of binaries: one call, a notification for each graph and context, each on its own."""

from __future__ import annotations

import asyncio
import os
import signal as signals
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.core.status import QNN_GRAPH_ERROR_DISABLED
from openhtp.core.value_kinds import GroupRegistration
from openhtp.device import loading
from openhtp.device.server import Server
from tests.conftest import ramp, relu_graph
from tests.device.serving import NAME, serving
from tests.runtime.test_stopping import Gate, holdings
from tests.waiting import PATIENCE_S, wait_until

GRAPH, CONTEXT = htp.NotifyType.GRAPH_INIT, htp.NotifyType.CONTEXT_INIT


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def binaries(shared_device: htp.Device) -> list[bytes]:
    """The first has two graphs, the others one."""
    made = []
    for names in (("a", "b"), ("c",), ("d",)):
        with shared_device.create_context() as context:
            for name in names:
                relu_graph(context, name)
            made.append(context.get_binary())
    return made


class Told:
    """What was notified, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *arguments: Any) -> None:
        self.calls.append(arguments)

    def of(self, param: object) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[4] == param]


def delivered(backend: htp.Backend) -> None:
    done = threading.Event()
    backend.notifier.post(done.set)
    assert done.wait(PATIENCE_S)


def test_every_graph_and_every_context_is_told_of(
    backend: htp.Backend, binaries: list[bytes], tmp_path: Path
) -> None:
    device = backend.create_device()
    path = tmp_path / "b.bin"
    path.write_bytes(binaries[1])
    told = Told()
    creation = device.create_contexts_from_binaries([binaries[0], path, str(path)], notify=told, queue_depth=7)
    contexts = creation.result(PATIENCE_S)
    assert creation.done()
    assert creation.contexts == contexts
    assert creation.errors == [None, None, None]
    delivered(backend)
    assert len(told.calls) == 3 + 4
    for place, (context, names) in enumerate(zip(contexts, (("a", "b"), ("c",), ("c",)), strict=True)):
        *graphs, last = told.of(place)
        assert [call[:4] for call in graphs] == [(context, context.graph(name), name, GRAPH) for name in names]
        assert last == (context, None, None, CONTEXT, place, 0)
        assert context.queue_depth == 7
        for _, graph, *_ in graphs:
            np.testing.assert_array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))


def test_one_that_fails_ends_none_of_the_others(backend: htp.Backend, binaries: list[bytes]) -> None:
    device = backend.create_device()
    told = Told()
    bad = bytearray(binaries[1])
    bad[3] ^= 0xFF
    with device.create_contexts_from_binaries([binaries[0], bad, "/nowhere/a.bin"], notify=told) as creation:
        with pytest.raises(htp.BadBinary):
            creation.result(PATIENCE_S)
        assert isinstance(creation.exception(), htp.BadBinary)
        first, second, third = creation.contexts
        assert first is not None
        assert (second, third) == (None, None)
        assert first.graph("b").execute({"x": ramp()})
        delivered(backend)
        assert told.of(1) == [(None, None, None, CONTEXT, 1, creation.errors[1].code)]  # type: ignore[union-attr]
        assert told.of(0)[-1][-1] == 0
    with pytest.raises(htp.InvalidHandle):
        first.graph("a")
    assert device.info()["sessions"][0]["contexts"] == 0


def test_graphs_that_are_left_out_say_so(backend: htp.Backend, binaries: list[bytes]) -> None:
    device = backend.create_device()
    told = Told()
    configs = [{"enable_graphs": ["b"]}, {"priority": "high"}]
    contexts = device.create_contexts_from_binaries(binaries[:2], notify=told, configs=configs).result(PATIENCE_S)  # type: ignore[arg-type]
    delivered(backend)
    statuses = {call[2]: call[5] for call in told.of(0)}
    assert statuses["b"] == statuses[None] == 0
    assert statuses["a"] == QNN_GRAPH_ERROR_DISABLED.code
    assert contexts[1].graph("c").priority is htp.Priority.HIGH


def test_contexts_are_made_side_by_side(
    server: Server, backend: htp.Backend, binaries: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are made ready at once: each waits for the other to have begun."""
    both = threading.Barrier(2, timeout=PATIENCE_S)
    real = loading._make_ready

    def meet(*args: Any) -> Any:
        both.wait()
        return real(*args)

    monkeypatch.setattr(loading, "_make_ready", meet)
    device = backend.create_device(name=NAME)
    assert len(device.create_contexts_from_binaries(binaries[1:]).result(PATIENCE_S)) == 2


def test_notifications_come_in_the_order_in_which_contexts_are_ready(
    server: Server, backend: htp.Backend, binaries: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of the list is made ready only after the second was notified."""
    second_told = threading.Event()
    real = loading._make_ready

    def last_first(target: Any, packed: Any, workshop: Any) -> Any:
        if packed.name == "c":
            assert second_told.wait(PATIENCE_S)
        return real(target, packed, workshop)

    monkeypatch.setattr(loading, "_make_ready", last_first)
    device = backend.create_device(name=NAME)
    told = Told()

    def notify(*arguments: Any) -> None:
        told(*arguments)
        if arguments[3] is CONTEXT:
            second_told.set()

    creation = device.create_contexts_from_binaries(binaries[1:], notify=notify)
    first, second = creation.result(PATIENCE_S)
    delivered(backend)
    made = [call[0] for call in told.calls if call[3] is CONTEXT]
    assert made == [second, first]


@pytest.mark.parametrize("way", ["signal", "timeout", "cancel", "with"])
def test_what_is_not_ready_can_be_ended(
    server: Server, backend: htp.Backend, binaries: list[bytes], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    device = backend.create_device(name=NAME)
    gate = Gate(monkeypatch, loading, "_make_ready")
    signal = None if way in ("cancel", "with") else backend.create_signal(30_000 if way == "timeout" else None)
    told = Told()
    creation = device.create_contexts_from_binaries(binaries, notify=told, signal=signal)
    # On a busy machine the time may be over before anything is begun.
    wait_until(lambda: gate.reached.is_set() or (way == "timeout" and creation.done()))
    if way == "with":
        with creation:
            pass
    elif way == "cancel":
        assert creation.cancel()
    elif way == "signal":
        assert signal is not None
        signal.trigger()
    error = creation.exception(PATIENCE_S)
    assert error is not None
    assert error.name == f"QNN_CONTEXT_ERROR_{'TIMED_OUT' if way == 'timeout' else 'ABORTED'}"
    assert not creation.cancel()
    assert signal is None or not signal.in_use
    delivered(backend)
    if way != "with":
        assert {call[5] for call in told.calls} == {error.code}
    gate.open.set()
    wait_until(lambda: holdings(server) == [(0, 0, 0, 0)])


def test_it_can_be_awaited(backend: htp.Backend, binaries: list[bytes]) -> None:
    device = backend.create_device()

    async def work() -> int:
        return len(await device.create_contexts_from_binaries(binaries))

    assert asyncio.run(work()) == 3


@pytest.mark.parametrize("count", range(3))
def test_a_device_that_dies_is_told_to_all(backend: htp.Backend, binaries: list[bytes], count: int) -> None:
    device = backend.create_device()
    os.kill(device.pid, signals.SIGSTOP)
    told = Told()
    creation = device.create_contexts_from_binaries(binaries, notify=told)
    with pytest.raises(TimeoutError, match="0 of 3"):
        creation.result(0.001)
    os.kill(device.pid, signals.SIGKILL)
    assert isinstance(creation.exception(PATIENCE_S), htp.DeviceLost)
    delivered(backend)
    assert all(error is None or isinstance(error, htp.DeviceLost) for error in creation.errors)
    assert len([call for call in told.calls if call[3] is CONTEXT]) == 3


def test_the_child_of_a_fork_is_not_left_waiting(
    server: Server, backend: htp.Backend, binaries: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = backend.create_device(name=NAME)
    gate = Gate(monkeypatch, loading, "_make_ready")
    creation = device.create_contexts_from_binaries(binaries)
    assert gate.reached.wait(PATIENCE_S)
    child = os.fork()
    if child == 0:
        answer = 1
        try:
            creation.result(PATIENCE_S)
        except htp.InvalidHandle:
            answer = 7
        finally:
            os._exit(answer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    gate.open.set()
    assert len(creation.result(PATIENCE_S)) == 3


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        ([], {}, "at least one binary"),
        (b"abc", {}, "expected a list"),
        ("a.bin", {}, "expected a list"),
        ([b"", 3.0], {}, "binary is a float"),
        ([b""], {"configs": []}, "one mapping of options for each of 1"),
        ([b""], {"configs": [3]}, "one mapping of options"),
        ([b""], {"configs": [{"share_resources": True}]}, "for the list as a whole"),
        ([b""], {"configs": [{"nonsense": 1}]}, "does not exist"),
        ([b""], {"share_resources": True, "memory_limit_hint": 5, "is_persistent_binary": True}, "exclude"),
        (
            [b""],
            {"register_multi_contexts": GroupRegistration(max_spill_fill_buffer=1)},
            "create_context_from_binary",
        ),
        ([b""], {"weight_sharing_enabled": True}, "weight_sharing_enabled"),
        ([b""], {"notify": 3}, "expected a function"),
        ([b""], {"signal": 3}, "signal handle"),
    ],
)
def test_bad_arguments_begin_nothing(
    shared_device: htp.Device, given: Any, options: dict[str, Any], words: str
) -> None:
    before = shared_device.info()["sessions"][0]["contexts"]
    with pytest.raises(htp.QnnError, match=words):
        shared_device.create_contexts_from_binaries(given, **options)
    assert shared_device.info()["sessions"][0]["contexts"] == before


def test_a_device_that_is_freed_meanwhile_did_not_go_away(
    server: Server, binaries: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, loading, "_make_ready")
    with htp.Backend() as backend:
        device = backend.create_device(name=NAME)
        creation = device.create_contexts_from_binaries(binaries)
        assert gate.reached.wait(PATIENCE_S)
        device.free()
        gate.open.set()
        with pytest.raises(htp.QnnError, match="freed"):
            creation.result(PATIENCE_S)
