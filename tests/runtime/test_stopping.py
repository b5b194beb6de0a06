"""Signals that end finalizing and creating contexts: the caller is back at once, and nothing half made is left."""

from __future__ import annotations

import dataclasses
import os
import signal as signals
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.bench import cancelling
from openhtp.core import tidying
from openhtp.core.units import MIB
from openhtp.device import loading
from openhtp.device.server import Server
from openhtp.program.binary import pack_graphs, read_binary
from openhtp.program.container import make_section
from openhtp.rpc import shm
from openhtp.runtime.objects import graph as client_graph
from tests.conftest import ramp, relu_graph
from tests.device.serving import NAME, serving, settled
from tests.waiting import PATIENCE_S, wait_until


class Gate:
    """Holds up what it is set before until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        real = getattr(module, name)

        def wait(*args: Any) -> Any:
            self.reached.set()
            assert self.open.wait(PATIENCE_S)
            return real(*args)

        monkeypatch.setattr(module, name, wait)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def binary(shared_device: htp.Device) -> bytes:
    with shared_device.create_context() as made:
        for name in ("a", "b"):
            relu_graph(made, name)
        return made.get_binary()


def unfinished(context: htp.Context, name: str = "g") -> htp.Graph:
    graph = context.create_graph(name)
    x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
    y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
    graph.add_node("Relu", inputs=[x], outputs=[y])
    return graph


def holdings(server: Server) -> list[tuple[int, int, int, int]]:
    settled(server)
    return [(len(s.contexts), len(s.graphs), s.ledger.used, len(s.tasks)) for s in server.core.sessions.values()]


def triggering(gate: Gate, signal: htp.Signal) -> threading.Thread:
    def trigger() -> None:
        assert gate.reached.wait(PATIENCE_S)
        signal.trigger()

    thread = threading.Thread(target=trigger)
    thread.start()
    return thread


@pytest.mark.parametrize("timeout_us", [None, 20_000], ids=["abort", "timeout"])
def test_finalize_ends_while_the_device_is_still_busy(
    server: Server, backend: htp.Backend, monkeypatch: pytest.MonkeyPatch, timeout_us: int | None
) -> None:
    device = backend.create_device(name=NAME)
    context = device.create_context()
    graph = unfinished(context)
    gate = Gate(monkeypatch, loading, "_make_ready")
    signal = backend.create_signal(timeout_us)
    thread = triggering(gate, signal) if timeout_us is None else None
    with pytest.raises((htp.Aborted, htp.TimedOut)) as caught:
        graph.finalize(signal=signal)
    assert caught.value.name == f"QNN_GRAPH_ERROR_{'ABORTED' if timeout_us is None else 'TIMED_OUT'}"
    assert not gate.open.is_set(), "it waited for the device"
    if thread is not None:
        thread.join()
    assert not signal.in_use
    gate.open.set()
    wait_until(lambda: holdings(server) == [(1, 0, 0, 0)])
    graph.finalize()  # it stayed as it was
    np.testing.assert_array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))


def test_finalize_ends_while_the_client_still_compiles(
    backend: htp.Backend, shared_device: htp.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shared_device.create_context() as context:
        graph = unfinished(context)
        gate = Gate(monkeypatch, client_graph, "portable_program")
        signal = backend.create_signal()
        thread = triggering(gate, signal)
        with pytest.raises(htp.Aborted, match="finalizing graph 'g' was aborted"):
            graph.finalize(signal=signal)
        thread.join()
        assert not gate.open.is_set()
        gate.open.set()
        graph.finalize(signal=signal)  # the signal can be used again, too
        assert graph.is_finalized


@pytest.mark.parametrize("timeout_us", [None, 20_000], ids=["abort", "timeout"])
def test_creation_ends_while_the_device_is_still_busy(
    server: Server, backend: htp.Backend, binary: bytes, monkeypatch: pytest.MonkeyPatch, timeout_us: int | None
) -> None:
    device = backend.create_device(name=NAME)
    gate = Gate(monkeypatch, loading, "_make_ready")
    signal = backend.create_signal(timeout_us)
    thread = triggering(gate, signal) if timeout_us is None else None
    with pytest.raises((htp.Aborted, htp.TimedOut)) as caught:
        device.create_context_from_binary(binary, signal=signal)
    assert caught.value.name == f"QNN_CONTEXT_ERROR_{'ABORTED' if timeout_us is None else 'TIMED_OUT'}"
    assert not gate.open.is_set(), "it waited for the device"
    if thread is not None:
        thread.join()
    gate.open.set()
    wait_until(lambda: holdings(server) == [(0, 0, 0, 0)])
    with device.create_context_from_binary(binary, signal=backend.create_signal(60_000_000)) as context:
        assert context.graph("b").execute({"x": ramp()})


@pytest.mark.parametrize("transport", ["rpc", "inprocess"])
def test_a_signal_that_is_not_triggered_changes_nothing(
    backend: htp.Backend, binary: bytes, transport: str
) -> None:
    device = backend.create_device(transport=transport)  # type: ignore[arg-type]
    signal = backend.create_signal()
    with device.create_context_from_binary(binary, signal=signal) as context:
        assert not signal.in_use
        np.testing.assert_array_equal(context.graph("a").execute({"x": ramp()})["y"], np.maximum(ramp(), 0))
    with pytest.raises(htp.WrongState) as idle:
        signal.trigger()
    assert idle.value.name == "QNN_SIGNAL_ERROR_SIGNAL_IDLE"


def test_in_process_too(backend: htp.Backend, binary: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    device = backend.create_device(transport="inprocess")
    gate = Gate(monkeypatch, loading, "_make_ready")
    signal = backend.create_signal()
    thread = triggering(gate, signal)
    with pytest.raises(htp.Aborted):
        device.create_context_from_binary(binary, signal=signal)
    thread.join()
    gate.open.set()

    def is_empty() -> bool:
        (session,) = device.info()["sessions"]
        return (session["contexts"], session["graphs"], session["bytes"], session["tasks"]) == (0, [], 0, [])

    wait_until(is_empty)


def test_an_interrupted_finalize_leaves_no_graph(
    server: Server, backend: htp.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, without any signal of ours."""
    device = backend.create_device(name=NAME)
    context = device.create_context()
    graph = unfinished(context)
    gate = Gate(monkeypatch, loading, "_make_ready")

    def interrupt() -> None:
        assert gate.reached.wait(PATIENCE_S)
        signals.pthread_kill(threading.main_thread().ident, signals.SIGINT)  # type: ignore[arg-type]

    before = signals.signal(signals.SIGINT, signals.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            graph.finalize()
    finally:
        thread.join()
        signals.signal(signals.SIGINT, before)
    tidying.flush()
    gate.open.set()
    wait_until(lambda: holdings(server) == [(1, 0, 0, 0)])
    graph.finalize()
    assert holdings(server)[0][1] == 1


def test_requests_do_not_wait_for_each_other(
    server: Server, backend: htp.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that asks for something quick has its answer while another's graph is still being made."""
    device = backend.create_device(name=NAME)
    context = device.create_context()
    graph = unfinished(context)
    gate = Gate(monkeypatch, loading, "_make_ready")
    thread = threading.Thread(target=graph.finalize)
    thread.start()
    assert gate.reached.wait(PATIENCE_S)
    context.register_memory(64).deregister()
    gate.open.set()
    thread.join()
    assert graph.is_finalized


def test_a_device_that_dies_ends_the_call(backend: htp.Backend, binary: bytes) -> None:
    device = backend.create_device()
    signal = backend.create_signal()
    os.kill(device.pid, signals.SIGSTOP)  # it hears the request only when it is dead

    def kill() -> None:
        wait_until(lambda: signal.in_use)
        os.kill(device.pid, signals.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(htp.DeviceLost):
        device.create_context_from_binary(binary, signal=signal)
    thread.join()
    assert not signal.in_use
    wait_until(lambda: device.restarts == 1)
    with device.create_context_from_binary(binary) as context:
        assert context.graph("a").is_finalized


def test_a_device_that_does_not_answer_is_not_waited_for(backend: htp.Backend, binary: bytes) -> None:
    device = backend.create_device()
    os.kill(device.pid, signals.SIGSTOP)
    try:
        with pytest.raises(htp.TimedOut, match="10000 us"):
            device.create_context_from_binary(binary, signal=backend.create_signal(10_000))
    finally:
        os.kill(device.pid, signals.SIGCONT)
    wait_until(lambda: device.info()["sessions"][0]["contexts"] == 0)


def test_the_bench_of_signals_finds_nothing_left() -> None:
    """Stopped in the middle of real work, wherever that is by then."""
    *_, result = cancelling.run("small_cnn", moments=2)
    assert isinstance(result, cancelling.CancelResult)
    assert len(result.rows) == 6
    for row in result.rows:
        assert row.left_over == 0, row


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_b8_copying_a_binary_from_memory_ends_with_the_call(
    backend: htp.Backend,
    shared_device: htp.Device,
    binary: bytes,
    kind: type[bytes | bytearray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = read_binary(binary)
    ballast = make_section(bytes(64 * MIB))
    heavy = dataclasses.replace(small.packed("a"), blobs=(*small.packed("a").blobs, ballast))
    large = kind(b"".join(pack_graphs([heavy], small.info)))
    signal, write, copied = backend.create_signal(), shm.write_at, [0]

    def write_and_abort(fd: int, offset: int, left: memoryview) -> int:
        if not copied[0]:
            signal.trigger()
        copied[0] += len(left)
        return write(fd, offset, left)

    monkeypatch.setattr(shm, "write_at", write_and_abort)
    with pytest.raises(htp.Aborted):
        shared_device.create_context_from_binary(large, signal=signal)
    assert 0 < copied[0] < 16 * MIB
    assert not signal.in_use
