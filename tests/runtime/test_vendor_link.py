"""The queue in front of the vendor's library, with a library of our own making: ``y = relu(x)``, when told to.

What the real one does behind it is tested in tests/vendor.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.core import status as st
from openhtp.rpc.shm import SharedBuffer
from openhtp.runtime.links import vendor_link
from openhtp.runtime.links.device_process import DeviceOptions
from openhtp.runtime.links.vendor_link import VendorLink
from openhtp.runtime.objects.device import Device
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S


class FakeProcess:
    """A process that does nothing but live, and a library that waits for ``go_on`` before it computes."""

    def __init__(self, library: str, *, soc: int | None = None) -> None:
        self.info = SimpleNamespace(path=library, build_id="fake", devices=[SimpleNamespace(soc_model=soc)])
        self._life = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.pid = self._life.pid
        self.busy, self.may_go_on = threading.Event(), threading.Event()
        self.ran: list[str] = []
        self.shared: dict[int, SharedBuffer] = {}
        self.contexts: set[int] = set()
        self.failure: htp.QnnError | None = None

    def go_on(self) -> None:
        self.may_go_on.set()

    def create_context(self, **options: Any) -> int:
        self.contexts.add(len(self.contexts) + 1)
        return len(self.contexts)

    def build(self, recipe: Any, context: int) -> str:
        return str(recipe.name)

    def finalize(self, graph: str) -> None:
        if graph == "refused":
            raise htp.UnsupportedOp("the library does not take it")

    def free(self, context: int) -> None:
        self.contexts.discard(context)

    def attach(self, buffer: SharedBuffer) -> int:
        self.shared[buffer.fd] = SharedBuffer.attach(os.dup(buffer.fd))
        return buffer.fd

    def detach(self, memory: int) -> None:
        del self.shared[memory]

    def execute_shared(self, graph: str, places: dict[str, tuple[int, int]]) -> None:
        self.busy.set()
        self.may_go_on.wait()
        self.ran.append(graph)
        if self.failure is not None:
            raise self.failure
        x, y = (self.shared[memory].array(offset, (1, 8), np.float32) for memory, offset in places.values())
        np.maximum(x, 0, out=y)

    def close(self) -> None:
        self.go_on()
        self._life.kill()
        self._life.communicate()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeProcess]]:
    """The processes that were started, newest last."""
    processes: list[FakeProcess] = []

    def start(library: str, *, soc: int | None = None) -> FakeProcess:
        processes.append(FakeProcess(library, soc=soc))
        return processes[-1]

    monkeypatch.setattr(vendor_link, "VendorProcess", start)
    monkeypatch.setattr(vendor_link.platform, "machine", lambda: "x86_64")
    yield processes
    for process in processes:
        process.close()


@pytest.fixture
def device(made: list[FakeProcess]) -> Iterator[htp.Device]:
    options = DeviceOptions()
    with htp.Backend() as backend:
        yield Device(backend, options, lambda lost: VendorLink("lib.so", options.config, lost))


@pytest.fixture
def process(device: htp.Device, made: list[FakeProcess]) -> FakeProcess:
    return made[0]


def test_an_execution_reaches_the_library_and_comes_back(device: htp.Device, process: FakeProcess) -> None:
    process.go_on()
    graph = relu_graph(device.create_context())
    np.testing.assert_array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))
    np.testing.assert_array_equal(graph.execute({"x": ramp((3, 8))})["y"], np.maximum(ramp((3, 8)), 0))
    assert process.ran == ["g"] * 4
    assert device.pid == process.pid
    assert device.info()["library_version"] == "fake"


def test_urgent_ones_overtake_what_waits_but_not_what_runs(device: htp.Device, process: FakeProcess) -> None:
    context = device.create_context()
    low, high = relu_graph(context, "low", priority="low"), relu_graph(context, "high", priority="high")
    first = low.execute_async({"x": ramp()})
    assert process.busy.wait(PATIENCE_S)
    later = [low.execute_async({"x": ramp()}), high.execute_async({"x": ramp()})]
    process.go_on()
    for execution in (first, *later):
        execution.result(PATIENCE_S)
    assert process.ran == ["low", "high", "low"]


def test_a_waiting_one_ends_at_once_while_the_library_is_busy(device: htp.Device, process: FakeProcess) -> None:
    backend = device.backend
    graph = relu_graph(device.create_context())
    running = graph.execute_async({"x": ramp()})
    assert process.busy.wait(PATIENCE_S)
    abort, timeout = backend.create_signal(), backend.create_signal(timeout_us=1000)
    aborted = graph.execute_async({"x": ramp()}, signal=abort)
    late = graph.execute_async({"x": ramp()}, signal=timeout)
    abort.trigger()
    assert isinstance(aborted.exception(PATIENCE_S), htp.Aborted)
    assert isinstance(late.exception(PATIENCE_S), htp.TimedOut)
    assert not running.done()
    process.go_on()
    assert running.exception(PATIENCE_S) is None
    assert process.ran == ["g"]


def test_the_librarys_errors_are_the_executions(device: htp.Device, process: FakeProcess) -> None:
    process.go_on()
    context = device.create_context()
    graph = relu_graph(context)
    process.failure = htp.ExecutionError("bad luck", st.QNN_GRAPH_ERROR_INVALID_TENSOR)
    with pytest.raises(htp.QnnError, match="bad luck") as caught:
        graph.execute({"x": ramp()})
    assert caught.value.code == st.QNN_GRAPH_ERROR_INVALID_TENSOR.code
    with pytest.raises(htp.UnsupportedOp, match="does not take it"):
        relu_graph(context, "refused")


def test_memory_and_contexts_are_given_back(device: htp.Device, process: FakeProcess) -> None:
    process.go_on()
    context = device.create_context()
    graph = relu_graph(context)
    memory = context.register_memory(128)
    values = memory.array("x"), memory.array("y")
    values[0][:] = ramp()
    graph.execute({"x": values[0]}, {"y": values[1]})
    np.testing.assert_array_equal(values[1], np.maximum(ramp(), 0))
    assert len(process.shared) == 1
    memory.deregister()
    graph.execute({"x": ramp()})  # behind the tidying, which is done between executions
    assert len(process.shared) == 1
    context.free()
    relu_graph(device.create_context()).execute({"x": ramp()})
    assert len(process.contexts) == 1


def test_freeing_a_context_ends_its_executions(device: htp.Device, process: FakeProcess) -> None:
    context = device.create_context()
    graph = relu_graph(context)
    executions = [graph.execute_async({"x": ramp()}) for _ in range(3)]
    assert process.busy.wait(PATIENCE_S)
    context.free()
    waiting = {execution.exception(PATIENCE_S).code for execution in executions[1:]}
    assert not executions[0].done()  # the library cannot be stopped
    process.go_on()
    assert waiting == {executions[0].exception(PATIENCE_S).code} == {st.QNN_GRAPH_ERROR_INVALID_CONTEXT.code}


def test_a_lost_process_is_told_once_and_replaced(device: htp.Device, made: list[FakeProcess]) -> None:
    seen: list[int] = []
    told = threading.Event()

    def notify(param: int, status: int) -> None:
        assert status == st.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION.code
        seen.append(param)
        if len(seen) == 5:
            told.set()

    graph = relu_graph(device.create_context())
    executions = [graph.execute_async({"x": ramp()}, notify=notify, notify_param=n) for n in range(5)]
    assert made[0].busy.wait(PATIENCE_S)
    os.kill(device.pid, signal.SIGKILL)
    assert all(isinstance(execution.exception(PATIENCE_S), htp.DeviceLost) for execution in executions)
    assert told.wait(PATIENCE_S)
    made[0].go_on()
    with pytest.raises(htp.DeviceLost):
        graph.execute({"x": ramp()})
    context = device.create_context()
    made[1].go_on()
    assert relu_graph(context).execute({"x": ramp()})["y"].any()
    assert sorted(seen) == list(range(5))
    assert device.restarts == 1
    assert device.pid == made[1].pid


def test_closing_ends_what_waits_and_closing_twice_is_fine(made: list[FakeProcess], backend: htp.Backend) -> None:
    options, lost = DeviceOptions(), []
    link = VendorLink("lib.so", options.config, lost.append)
    device = Device(backend, options, lambda _: link)
    graph = relu_graph(device.create_context())
    execution = graph.execute_async({"x": ramp()})
    link.close()
    link.close()
    assert isinstance(execution.exception(PATIENCE_S), htp.DeviceLost)
    assert not lost


def test_a_chip_that_the_library_does_not_know_is_refused(
    made: list[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vendor_link, "VendorProcess", lambda library, soc: FakeProcess(library, soc=30))
    with pytest.raises(htp.UnsupportedFeature, match="SM8650"):
        VendorLink("lib.so", DeviceOptions().config, lambda _: None)
