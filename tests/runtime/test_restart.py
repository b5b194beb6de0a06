"""Subsystem restarts under load, and devices that nobody holds on to."""

from __future__ import annotations

import gc
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.rpc import channel, messages as ms
from openhtp.runtime.links.rpc_link import RpcLink
from openhtp.runtime.objects.open_context import OpenContext
from openhtp.testing import hold
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S, wait_until


def gone(pid: int) -> bool:
    """Wait until a process has ended; a zombie has."""

    def ended() -> bool:
        gc.collect()  # the thread that told of the end may have held on to it the last time
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_until(ended)
    return True


def test_graphs_are_made_while_the_device_goes(backend: htp.Backend) -> None:
    device = backend.create_device()
    context = device.create_context()
    stop, strays = threading.Event(), []

    def work(thread: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                context.create_graph(f"g{thread}-{number}")
            except htp.DeviceLost:
                return
            except BaseException as error:
                strays.append(error)
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    old = device.pid
    os.kill(old, signal.SIGKILL)
    for thread in threads:
        thread.join(PATIENCE_S)
    stop.set()
    assert strays == []
    assert device.pid != old
    np.testing.assert_array_equal(
        relu_graph(device.create_context()).execute({"x": ramp()})["y"], np.maximum(ramp(), 0)
    )


def test_a_loss_that_cannot_be_told_still_gets_everyone_an_answer(
    backend: htp.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = backend.create_device()
    context = device.create_context()
    graph = relu_graph(context)
    hold(device)
    told: list[int] = []
    execution = graph.execute_async({"x": ramp()}, notify=lambda _, status: told.append(status))

    def fail(self: OpenContext) -> None:
        raise RuntimeError("dictionary changed size during iteration")

    with monkeypatch.context() as patch:
        patch.setattr(OpenContext, "lose", fail)
        os.kill(device.pid, signal.SIGKILL)
        with pytest.raises(htp.DeviceLost):
            execution.result(PATIENCE_S)
        assert device.info()["pid"] == device.pid  # waits for the restart
    backend.notifier.close()
    assert len(told) == 1


@pytest.mark.parametrize("slow", ["the reader", "the notice"])
def test_who_hears_of_the_loss_by_submitting_may_build_anew_at_once(
    backend: htp.Backend, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    """The thread that reads from the device has not noticed yet, or it is just about to notify the device."""
    device = backend.create_device()
    context = device.create_context()
    graph = relu_graph(context)
    graph.execute_async({"x": ramp()}).result(PATIENCE_S)  # so that it has memory, and asks for none
    begun, go_on = threading.Event(), threading.Event()
    owner, name = {"the reader": (RpcLink, "_end"), "the notice": (OpenContext, "lose")}[slow]
    real = getattr(owner, name)

    def late(self: object) -> None:
        begun.set()
        go_on.wait(PATIENCE_S)
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, late)
        os.kill(device.pid, signal.SIGKILL)
        assert begun.wait(PATIENCE_S)
        release = threading.Timer(0.2, go_on.set)
        release.start()
        with pytest.raises(htp.DeviceLost, match="the device process went away"):
            graph.execute_async({"x": ramp()})
        usable_after = context.is_usable
        go_on.set()
        release.join()
    assert not usable_after
    fresh = relu_graph(device.create_context())
    np.testing.assert_array_equal(fresh.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))


def test_a_restart_that_fails_is_an_answer_too(backend: htp.Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    device = backend.create_device()

    def fail() -> None:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(device, "_make_link", fail)
    os.kill(device.pid, signal.SIGKILL)
    wait_until(lambda: not device._ready.is_open or device._failure is not None)
    with pytest.raises(htp.DeviceLost, match="too many open files"):
        device.info()


def test_a_dropped_backend_ends_its_process() -> None:
    backend = htp.Backend()
    device = backend.create_device()
    graph = relu_graph(device.create_context())
    graph.execute_async({"x": ramp()}, notify=lambda *_: None).result(PATIENCE_S)
    pid = device.pid
    del backend, device, graph
    assert gone(pid)


def test_an_execution_under_way_keeps_its_device() -> None:
    backend = htp.Backend()
    device = backend.create_device()
    hold(device)
    link, pid = device.link, device.pid
    told = threading.Event()
    execution = relu_graph(device.create_context()).execute_async({"x": ramp()}, notify=lambda *_: told.set())
    del backend, device
    gc.collect()
    link.request(ms.Inject(hold=False))
    np.testing.assert_array_equal(execution.result(PATIENCE_S)["y"], np.maximum(ramp(), 0))
    assert told.wait(PATIENCE_S)
    del execution
    assert gone(pid)


def test_a_duct_that_the_device_never_took_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device goes while a thread asks it for a data socket of its own."""
    with htp.Backend() as backend:
        graph = relu_graph(backend.create_device().create_context())
        graph.execute_async({"x": ramp()}).result(PATIENCE_S)  # so that there is memory for its arrays
        link = graph.context.opened.link
        made: list[Any] = []
        pair = channel.socket_pair

        def remembered() -> Any:
            made.append(pair())
            return made[-1]

        def refuse(message: Any, *rest: Any) -> Any:
            raise htp.DeviceLost("gone")

        monkeypatch.setattr(channel, "socket_pair", remembered)
        monkeypatch.setattr(link, "request", refuse)
        with pytest.raises(htp.DeviceLost):
            graph.execute({"x": ramp()})
        assert [sock.fileno() for sock in made[0]] == [-1, -1]
        monkeypatch.undo()


def test_who_is_late_hears_that_the_process_died_not_that_the_device_was_freed(backend: htp.Backend) -> None:
    """The device has closed what was left of the connection by then."""
    device = backend.create_device()
    old = device.link
    os.kill(device.pid, signal.SIGKILL)
    wait_until(lambda: device._link_now is not old)
    with pytest.raises(htp.DeviceLost, match="went away during Inspect"):
        old.request(ms.Inspect())
