"""A device that computes with a library, with a library of our own making: ``y = relu(x)``, when told to.

What the real one does behind it is tested in tests/vendor.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.core import status as st
from openhtp.core.threads import OwnThread
from openhtp.device.config import DeviceConfig
from openhtp.device.core import build_library_core
from openhtp.device.library_target import LogLines
from openhtp.device.server import Server
from openhtp.engine.protocol import Arrays
from openhtp.hw.catalog import find_soc
from openhtp.program.qnn_program import QnnProgram
from openhtp.rpc import channel
from openhtp.runtime.instruments.device_queries import library_binary, open_library_binary
from openhtp.runtime.links.device_choice import chip_of
from openhtp.runtime.links.device_process import DeviceOptions
from openhtp.runtime.links.rpc_link import RpcLink
from openhtp.runtime.objects.device import Device
from openhtp.testing import hold
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S

OURS = Path(htp.__file__).parent / "capi/lib/libQnnHtp.so"


class FakeTarget:
    """A library that waits for ``go_on`` before it computes."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1)
        self.log = LogLines()
        self.busy, self.may_go_on = threading.Event(), threading.Event()
        self.ran: list[str] = []
        self.loaded: list[str] = []
        self.votes: list[dict[str, Any]] = []
        self.failure: htp.QnnError | None = None
        self.platform: list[dict[str, Any]] = []

    def go_on(self) -> None:
        self.may_go_on.set()

    def start(self) -> None:
        pass

    def describe(self) -> dict[str, object]:
        return {"library": "lib.so", "library_version": "fake", "platform": self.platform}

    def vote(self, **votes: Any) -> None:
        self.votes.append(votes)

    def load(self, program: QnnProgram) -> Any:
        if program.name == "refused":
            raise htp.UnsupportedOp("the library does not take it")
        self.loaded.append(program.name)

        def bind(arrays: Arrays) -> Any:
            return SimpleNamespace(step=lambda index: self.execute(program.name, arrays))

        def close() -> None:
            self.thread.submit(self.loaded.remove, program.name)

        return SimpleNamespace(steps=1, spill_fill_bytes=0, vtcm_peak_bytes=None, bind=bind, close=close)

    def execute(self, graph: str, arrays: Arrays) -> None:
        self.busy.set()
        self.may_go_on.wait()
        self.ran.append(graph)
        if self.failure is not None:
            raise self.failure
        np.maximum(arrays["x"], 0, out=arrays["y"])


class ServedHere(RpcLink):
    """Reaches a device whose server is on a thread of the test, with the library that the test holds."""

    def __init__(self, target: FakeTarget) -> None:
        self._target = target
        super().__init__(DeviceOptions(), lambda _: None)

    def _reach(self) -> tuple[socket.socket, None]:
        ours, theirs = channel.socket_pair()
        server = Server(build_library_core(DeviceConfig(), self._target))  # type: ignore[arg-type]
        server.adopt(theirs)
        self.serving = OwnThread(server.serve, name="served-here")
        self.serving.start()
        return ours, None


@pytest.fixture
def target() -> Iterator[FakeTarget]:
    made = FakeTarget()
    yield made
    made.go_on()
    made.thread.shutdown()


@pytest.fixture
def device(target: FakeTarget) -> Iterator[htp.Device]:
    with htp.Backend() as backend:
        link = ServedHere(target)
        yield Device(backend, DeviceOptions(), lambda _: link)
        target.go_on()
    link.serving.join()


class LibraryBehind(htp.Backend):
    """Its devices have a library behind them; which, the link says."""

    @property
    def library(self) -> Path:
        return OURS


@pytest.mark.parametrize(
    ("chip", "soc", "cores"),
    [
        ({"soc_model": 93, "arch": 68}, "QCS6490", 1),
        ({"soc_model": 66, "arch": 73}, "QCS8550", 1),
        ({"soc_model": 77, "arch": 73}, "QCS9075", 2),
        ({"soc_model": 57, "arch": 75}, "SM8650", 1),
        ({"soc_model": None, "arch": None}, "SM8650", 1),
    ],
)
def test_a_device_is_the_chip_that_the_library_says(
    chip: dict[str, Any], soc: str, cores: int, target: FakeTarget
) -> None:
    target.platform = [chip]
    link = ServedHere(target)
    with LibraryBehind() as backend:
        device = Device(backend, DeviceOptions(), lambda _: link)
        assert (device.soc, device.cores) == (soc, cores)
        assert device.info()["soc"] == soc
    link.serving.join()


def test_a_chip_that_was_named_and_is_not_there_is_refused(target: FakeTarget) -> None:
    target.platform = [{"soc_model": 93, "arch": 68}]
    link = ServedHere(target)
    with (
        LibraryBehind() as backend,
        pytest.raises(htp.InvalidArgument, match=r"soc is SM8650, .* this chip is QCS6490 .*leave soc out"),
    ):
        Device(backend, DeviceOptions(), lambda _: link, soc_named=True)
    link.close()
    link.serving.join()


def test_a_chip_that_we_do_not_know_is_checked_as_one_of_its_architecture(
    caplog: pytest.LogCaptureFixture,
) -> None:
    platform = [{"soc_model": 999, "arch": 79}]
    assert chip_of(find_soc("SM8650"), platform, named=False).name == "SM8750"
    assert "SoC model 999, v79, which the catalog does not have" in caplog.text
    assert chip_of(find_soc("SM8650"), [], named=True).name == "SM8650"
    # One number, two names: the caller's name stays.
    assert chip_of(find_soc("QCS8750"), [{"soc_model": 69, "arch": 79}], named=True).name == "QCS8750"


def test_an_execution_reaches_the_library_and_comes_back(device: htp.Device, target: FakeTarget) -> None:
    target.go_on()
    graph = relu_graph(device.create_context())
    np.testing.assert_array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))
    np.testing.assert_array_equal(graph.execute({"x": ramp((3, 8))})["y"], np.maximum(ramp((3, 8)), 0))
    assert target.ran == ["g"] * 4
    assert device.info()["library_version"] == "fake"


def test_urgent_ones_overtake_what_waits_but_not_what_runs(device: htp.Device, target: FakeTarget) -> None:
    context = device.create_context()
    low, high = relu_graph(context, "low", priority="low"), relu_graph(context, "high", priority="high")
    first = low.execute_async({"x": ramp()})
    assert target.busy.wait(PATIENCE_S)
    later = [low.execute_async({"x": ramp()}), high.execute_async({"x": ramp()})]
    target.go_on()
    for execution in (first, *later):
        execution.result(PATIENCE_S)
    assert target.ran == ["low", "high", "low"]


def test_a_waiting_one_ends_at_once_while_the_library_is_busy(device: htp.Device, target: FakeTarget) -> None:
    backend = device.backend
    graph = relu_graph(device.create_context())
    running = graph.execute_async({"x": ramp()})
    assert target.busy.wait(PATIENCE_S)
    abort, timeout = backend.create_signal(), backend.create_signal(timeout_us=1000)
    aborted = graph.execute_async({"x": ramp()}, signal=abort)
    late = graph.execute_async({"x": ramp()}, signal=timeout)
    abort.trigger()
    assert isinstance(aborted.exception(PATIENCE_S), htp.Aborted)
    assert isinstance(late.exception(PATIENCE_S), htp.TimedOut)
    assert not running.done()
    target.go_on()
    assert running.exception(PATIENCE_S) is None
    assert target.ran == ["g"]


def test_the_librarys_errors_are_the_executions(device: htp.Device, target: FakeTarget) -> None:
    target.go_on()
    context = device.create_context()
    graph = relu_graph(context)
    target.failure = htp.ExecutionError("bad luck", st.QNN_GRAPH_ERROR_INVALID_TENSOR)
    with pytest.raises(htp.QnnError, match="bad luck") as caught:
        graph.execute({"x": ramp()})
    assert caught.value.code == st.QNN_GRAPH_ERROR_INVALID_TENSOR.code
    with pytest.raises(htp.UnsupportedOp, match="does not take it"):
        relu_graph(context, "refused")


def test_memory_and_contexts_are_given_back(device: htp.Device, target: FakeTarget) -> None:
    target.go_on()
    context = device.create_context()
    graph = relu_graph(context)
    memory = context.register_memory(128)
    values = memory.array("x"), memory.array("y")
    values[0][:] = ramp()
    graph.execute({"x": values[0]}, {"y": values[1]})
    np.testing.assert_array_equal(values[1], np.maximum(ramp(), 0))
    memory.deregister()
    graph.execute({"x": ramp()})
    context.free()
    relu_graph(device.create_context(), "next").execute({"x": ramp()})
    assert target.loaded == ["next"]


def test_b14_votes_are_handed_on_and_what_is_modelled_is_refused(device: htp.Device, target: FakeTarget) -> None:
    config = device.create_power_config()
    config.set(rpc_polling_us=100)
    assert target.votes == [{"dcvs": None, "rpc_latency_us": None, "rpc_polling_us": 100}]
    device.set_perf_profile("burst")
    assert target.votes[-1]["dcvs"].core is not None
    with pytest.raises(htp.UnsupportedFeature, match="apps are modelled"):
        device.create_context().create_app("camera")


def test_what_the_library_logs_reaches_the_client(
    device: htp.Device, target: FakeTarget, caplog: pytest.LogCaptureFixture
) -> None:
    target.log.handle(logging.makeLogRecord({"levelno": logging.WARNING, "msg": "hot"}))
    device.info()
    device.info()
    assert [(line.name, line.getMessage()) for line in caplog.records] == [("openhtp.vendor.qnn", "hot")]


def test_freeing_a_context_ends_its_executions(device: htp.Device, target: FakeTarget) -> None:
    context = device.create_context()
    graph = relu_graph(context)
    executions = [graph.execute_async({"x": ramp()}) for _ in range(3)]
    assert target.busy.wait(PATIENCE_S)
    context.free()
    waiting = {execution.exception(PATIENCE_S).code for execution in executions[1:]}
    assert not executions[0].done()  # the library cannot be stopped
    target.go_on()
    assert waiting == {executions[0].exception(PATIENCE_S).code} == {st.QNN_GRAPH_ERROR_INVALID_CONTEXT.code}


@pytest.fixture
def ours() -> Iterator[htp.Device]:
    """A real process of a real library: the one that this package builds."""
    if not OURS.is_file():
        pytest.skip("the C library is not built")
    with htp.Backend(library=OURS) as backend:
        yield backend.create_device()


def test_a_library_in_a_process(ours: htp.Device) -> None:
    graph = relu_graph(ours.create_context())
    np.testing.assert_array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))
    assert ours.info()["library"] == str(OURS)
    assert ours.info()["pid"] == ours.pid != os.getpid()


def test_its_own_binaries_are_saved_and_opened(ours: htp.Device) -> None:
    with ours.create_context(prepare_only=True) as context:
        relu_graph(context, "one")
        relu_graph(context, "two")
        blob = library_binary(context)
    with open_library_binary(ours, blob) as restored:
        assert set(restored.graphs) == {"one", "two"}
        for graph in restored.graphs.values():
            np.testing.assert_array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))
    with pytest.raises(htp.BadBinary):
        open_library_binary(ours, b"nonsense")
    with (
        htp.Backend() as backend,
        pytest.raises(htp.UnsupportedFeature, match="for a device that computes with it"),
    ):
        open_library_binary(backend.create_device(), blob)


def test_a_lost_process_is_told_once_and_replaced(ours: htp.Device) -> None:
    seen: list[int] = []
    told = threading.Event()

    def notify(param: int, status: int) -> None:
        assert status == st.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION.code
        seen.append(param)
        if len(seen) == 5:
            told.set()

    graph = relu_graph(ours.create_context())
    hold(ours)
    executions = [graph.execute_async({"x": ramp()}, notify=notify, notify_param=n) for n in range(5)]
    os.kill(ours.pid, signal.SIGKILL)
    assert all(isinstance(execution.exception(PATIENCE_S), htp.DeviceLost) for execution in executions)
    assert told.wait(PATIENCE_S)
    with pytest.raises(htp.DeviceLost):
        graph.execute({"x": ramp()})
    assert relu_graph(ours.create_context()).execute({"x": ramp()})["y"].any()
    assert sorted(seen) == list(range(5))
    assert ours.restarts == 1


def test_freeing_ends_what_waits(ours: htp.Device) -> None:
    graph = relu_graph(ours.create_context())
    hold(ours)
    execution = graph.execute_async({"x": ramp()})
    pid = ours.pid
    ours.free()
    assert isinstance(execution.exception(PATIENCE_S), htp.QnnError)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
