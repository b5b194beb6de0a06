"""The queue's contract, by the same tests wherever there is a queue.

That is: in Python and through the table of functions of our own C library; on a device process, on a thread of
this process and on a device with a name; on the virtual clock; and on the vendor's library. Contexts have the
queue depth that a test needs, and the default where it needs none.

``Rig.stall`` makes the device busy until ``Rig.go_on``: it is held, or the virtual device simply has not been run
yet. No test waits for time to pass.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.runtime.links.device_process import DeviceOptions
from openhtp.runtime.links.rpc_link import RpcLink
from openhtp.testing import hold, release, virtual_device
from openhtp.vendor.library import find_library
from tests.capi.conftest import ROOT, build_script
from tests.conftest import ramp, relu_graph
from tests.contract import c_table
from tests.waiting import PATIENCE_S

STEP_NS = 1_000_000


class Rig:
    """A device on one of the clocks, and what differs between them."""

    def __init__(self, clock: str, backend: Any, **options: Any) -> None:
        self.clock = clock
        self.backend = backend
        self.device = (
            virtual_device(backend, step_ns=STEP_NS) if clock == "virtual" else backend.create_device(**options)
        )

    @property
    def is_c(self) -> bool:
        return self.clock.startswith("c ")

    @property
    def computing(self) -> htp.Device:
        return self.device.computing if self.is_c else self.device

    def stall(self) -> None:
        hold(self.computing)

    def go_on(self) -> None:
        release(self.computing)


@pytest.fixture(scope="session")
def lib_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lib")
    if not build_script().compile_libraries(ROOT, folder):
        pytest.skip("there is no C compiler")
    return folder


@pytest.fixture(scope="module")
def named() -> Iterator[str]:
    """A device with a name, which lets its clients order faults."""
    name = f"contract-{os.getpid()}"
    starter = RpcLink(DeviceOptions(name=name, allow_faults=True), lambda _: None)
    yield name
    starter.close()


# Where each of them lives: options of a device in Python, environment variables for C.
PLACES: dict[str, dict[str, str]] = {
    "process": {"host": "process"},
    "thread": {"host": "thread"},
    "shared thread": {"host": "thread", "npu": "shared"},
    "shared process": {"host": "process", "npu": "shared"},
    "named": {},
    "c thread": {},  # the default
    "c private thread": {"OPENHTP_NPU": "private"},
    "c process": {"OPENHTP_TRANSPORT": "rpc"},
    "c named": {},
}


@pytest.fixture(params=["virtual", *PLACES, pytest.param("vendor", marks=pytest.mark.vendor)])
def rig(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    kind: str = request.param
    options = dict(PLACES.get(kind, {}))
    if kind.endswith("named"):
        options["OPENHTP_DEVICE" if kind.startswith("c ") else "name"] = request.getfixturevalue("named")
    if kind.startswith("c "):
        for variable, value in options.items():
            monkeypatch.setenv(variable, value)
        through_c = c_table.Backend(request.getfixturevalue("lib_dir"))
        yield Rig(kind, through_c)
        through_c.free()
        return
    if kind == "vendor" and find_library() is None:
        pytest.skip("the onnxruntime-qnn package is not installed")
    with htp.Backend(library="vendor" if kind == "vendor" else None) as backend:
        yield Rig(kind, backend, **options)


class Log:
    """Notifications in the order they came."""

    def __init__(self, expected: int) -> None:
        self.seen: list[tuple[object, int]] = []
        self._expected = expected
        self._all = threading.Event()

    def __call__(self, param: object, status: int) -> None:
        self.seen.append((param, status))
        if len(self.seen) >= self._expected:
            self._all.set()

    def wait(self) -> list[tuple[object, int]]:
        assert self._all.wait(PATIENCE_S)
        return self.seen


def test_equal_priority_completes_in_order(rig: Rig) -> None:
    graph = relu_graph(rig.device.create_context(queue_depth=30))
    log = Log(30)
    rig.stall()
    executions = [graph.execute_async({"x": ramp()}, notify=log, notify_param=n) for n in range(30)]
    rig.go_on()
    executions[-1].result(PATIENCE_S)
    assert log.wait() == [(n, 0) for n in range(30)]


def test_higher_priority_overtakes_waiting_ones(rig: Rig) -> None:
    context = rig.device.create_context()
    low = relu_graph(context, "low", priority="low")
    high = relu_graph(context, "high", priority="high")
    log = Log(4)
    rig.stall()
    executions = [low.execute_async({"x": ramp()}, notify=log, notify_param=f"low {n}") for n in range(3)]
    executions.append(high.execute_async({"x": ramp()}, notify=log, notify_param="high"))
    rig.go_on()
    for execution in executions:
        execution.result(PATIENCE_S)
    order = [param for param, _ in log.wait()]
    # The first low one had already been given the device when the high one came.
    assert order.index("high") <= 1
    assert order.index("low 1") < order.index("low 2")


def test_depth_bounds_what_is_accepted(rig: Rig) -> None:
    context = rig.device.create_context(queue_depth=3)
    graph = relu_graph(context)
    rig.stall()
    executions = [graph.execute_async({"x": ramp()}) for _ in range(3)]
    assert context.pending == 3
    signal = rig.backend.create_signal(timeout_us=3000)
    # A full queue blocks: with a timeout signal the call gives up and is refused, not accepted.
    if rig.clock != "virtual":
        with pytest.raises(htp.TimedOut, match="place in the queue"):
            graph.execute_async({"x": ramp()}, signal=signal)
        assert context.pending == 3
    rig.go_on()
    fourth = graph.execute_async({"x": ramp()})
    for execution in (*executions, fourth):
        execution.result(PATIENCE_S)
    assert context.pending == 0


def test_blocked_submitter_goes_on_when_a_place_is_free(rig: Rig) -> None:
    graph = relu_graph(rig.device.create_context(queue_depth=1))
    results = [graph.execute_async({"x": ramp() + n}) for n in range(5)]  # blocks four times
    for n, execution in enumerate(results):
        # The vendor's library is off by one unit in the last place of a float32.
        np.testing.assert_allclose(execution.result(PATIENCE_S)["y"], np.maximum(ramp() + n, 0), rtol=1e-6)


def test_abort_ends_a_waiting_execution_only(rig: Rig) -> None:
    graph = relu_graph(rig.device.create_context())
    abort = rig.backend.create_signal()
    log = Log(3)
    rig.stall()
    first = graph.execute_async({"x": ramp()}, notify=log, notify_param=1)
    second = graph.execute_async({"x": ramp()}, signal=abort, notify=log, notify_param=2)
    third = graph.execute_async({"x": ramp()}, notify=log, notify_param=3)
    abort.trigger()
    rig.go_on()
    assert isinstance(second.exception(PATIENCE_S), htp.Aborted)
    assert first.exception(PATIENCE_S) is None
    assert third.exception(PATIENCE_S) is None
    assert sorted(log.wait()) == [(1, 0), (2, 6031), (3, 0)]


def test_timeout_runs_from_the_call(rig: Rig) -> None:
    graph = relu_graph(rig.device.create_context())
    rig.stall()
    blocker = graph.execute_async({"x": ramp()})
    late = graph.execute_async({"x": ramp()}, signal=rig.backend.create_signal(timeout_us=1500))
    early = graph.execute_async({"x": ramp()}, signal=rig.backend.create_signal(timeout_us=60_000_000))
    assert isinstance(late.exception(PATIENCE_S), htp.TimedOut)
    rig.go_on()
    assert blocker.exception(PATIENCE_S) is None
    assert early.exception(PATIENCE_S) is None


def test_cancel(rig: Rig) -> None:
    if rig.is_c:
        pytest.skip("the C interface cancels by signals alone")
    graph = relu_graph(rig.device.create_context())
    rig.stall()
    first = graph.execute_async({"x": ramp()})
    second = graph.execute_async({"x": ramp()})
    assert second.cancel()
    rig.go_on()
    assert first.exception(PATIENCE_S) is None
    assert isinstance(second.exception(PATIENCE_S), htp.Aborted)
    assert second.cancelled()
    assert not second.cancel()


def test_sync_and_async_share_one_queue(rig: Rig) -> None:
    context = rig.device.create_context()
    a, b = relu_graph(context, "a"), relu_graph(context, "b")
    queued = [a.execute_async({"x": ramp()}) for _ in range(3)]
    b.execute({"x": ramp()})
    # Equal standing: what was queued before the synchronous call was also run before it, so no one waits now.
    rig.stall()
    for execution in queued:
        assert execution.exception(PATIENCE_S) is None


def test_every_accepted_call_notifies_exactly_once(rig: Rig) -> None:
    graph = relu_graph(rig.device.create_context(queue_depth=300))
    log = Log(120)
    signals = [rig.backend.create_signal() if n % 3 == 0 else None for n in range(120)]
    rig.stall()
    executions = [
        graph.execute_async({"x": ramp()}, notify=log, notify_param=n, signal=signals[n]) for n in range(120)
    ]
    for n, signal in enumerate(signals):
        if signal is not None and n % 2 == 0:
            signal.trigger()
    rig.go_on()
    for execution in executions:
        execution.exception(PATIENCE_S)
    seen = log.wait()
    assert sorted(param for param, _ in seen) == list(range(120))
    aborted = {param for param, status in seen if status == 6031}
    assert aborted == {n for n in range(1, 120) if n % 6 == 0} | ({0} & aborted)
