"""Graphs bound to arrays: computed on at once in this process, and the usual way wherever that would differ."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.core import status
from openhtp.device.direct import DirectRun
from openhtp.runtime.calls import bound_call
from openhtp.runtime.calls.bound_call import BoundCall
from openhtp.runtime.calls.queue import most_untold
from openhtp.testing import fail_next, hold, inject, release, virtual_device
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def local() -> Iterator[htp.Graph]:
    """``y = relu(x)`` on a device of this process."""
    backend = htp.Backend()
    yield relu_graph(backend.create_device(transport="inprocess").create_context())
    backend.free()


def arrays(graph: htp.Graph) -> tuple[dict[str, Any], dict[str, Any]]:
    shape = graph.inputs[0].spec.shape
    return {"x": ramp().reshape(shape)}, {"y": np.zeros(shape, np.float32)}


def counted(graph: htp.Graph, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a queue is gone through."""
    calls: list[int] = []

    def noting(usual: Any) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            calls.append(1)
            return usual(*given, **more)

        return call

    monkeypatch.setattr(graph, "execute", noting(graph.execute))
    monkeypatch.setattr(bound_call, "send", noting(bound_call.send))
    return calls


def queued(bound: BoundCall, calls: list[int]) -> int:
    """How often a run goes through the queue: not at all, unless the device does something else just then."""
    before = len(calls)
    bound.run()
    return len(calls) - before


def test_from_the_second_run_on_nothing_is_queued(local: htp.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, outputs = arrays(local)
    calls = counted(local, monkeypatch)
    bound = BoundCall(local, inputs, outputs)
    for turn in range(5):
        inputs["x"][...] = ramp().reshape(inputs["x"].shape) - turn
        outputs["y"][...] = 99
        bound.run()
        assert np.array_equal(outputs["y"], np.maximum(inputs["x"], 0))
    wait_until(lambda: not queued(bound, calls))


def test_the_first_arrays_of_a_graph_are_used_where_they_lie(
    local: htp.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory for a copy would take longer than binding them; it does not for arrays that come later."""
    calls = counted(local, monkeypatch)
    wait_until(lambda: not local.context.device.info()["sessions"][0]["tasks"])
    BoundCall(local, *arrays(local)).run()
    first, buffers = len(calls), local.context.device.info()["sessions"][0]["bytes"]
    other = BoundCall(local, *arrays(local))
    other.run()
    assert len(calls) == first + 1
    assert local.context.device.info()["sessions"][0]["bytes"] > buffers


def test_registered_memory_is_used_where_it_lies(local: htp.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(local, monkeypatch)
    memory = local.context.register_memory(4096)
    x, y = memory.array("x"), memory.array("y")
    bound = BoundCall(local, {"x": x}, {"y": y})
    for _ in range(3):
        x[...] = ramp().reshape(x.shape)
        y[...] = 99
        bound.run()
        assert np.array_equal(y, np.maximum(x, 0))
    wait_until(lambda: not queued(bound, calls))


@pytest.mark.parametrize("kind", ["in place", "strided", "left to be made"])
def test_arrays_that_must_be_copied_are(local: htp.Graph, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(local, monkeypatch)
    inputs, outputs = arrays(local)
    x = inputs["x"]
    wanted = np.maximum(x, 0)
    if kind == "in place":
        outputs["y"] = x
    elif kind == "strided":
        inputs["x"] = np.repeat(x, 2, axis=-1)[..., ::2]
    bound = BoundCall(local, inputs, None if kind == "left to be made" else outputs)
    for _ in range(3):
        bound.run()
    assert len(calls) == 3
    if kind != "left to be made":
        assert np.array_equal(outputs["y"], wanted)


def test_what_is_recorded_goes_the_usual_way(
    local: htp.Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = counted(local, monkeypatch)
    bound = BoundCall(local, *arrays(local))
    wait_until(lambda: not queued(bound, calls))
    with htp.trace(tmp_path / "trace.json"):
        assert queued(bound, calls) == 1
    wait_until(lambda: not queued(bound, calls))


def test_an_ordered_fault_is_met(local: htp.Graph) -> None:
    bound = BoundCall(local, *arrays(local))
    for _ in range(3):
        bound.run()
    fail_next(local, status.QNN_COMMON_ERROR_SYSTEM)
    with pytest.raises(htp.ExecutionError):
        bound.run()
    bound.run()


def test_injected_faults_are_met(local: htp.Graph) -> None:
    bound = BoundCall(local, *arrays(local))
    for _ in range(3):
        bound.run()
    with inject("fail@graphExecute:2") as plan:
        bound.run()
        with pytest.raises(htp.QnnError, match="injected"):
            bound.run()
        bound.run()
    assert len(plan.met) == 1


def test_a_graph_that_is_gone_is_refused(local: htp.Graph) -> None:
    bound = BoundCall(local, *arrays(local))
    for _ in range(3):
        bound.run()
    local.context.free()
    with pytest.raises(htp.QnnError) as refused:
        bound.run()
    assert refused.value.name == "QNN_GRAPH_ERROR_INVALID_CONTEXT"


def test_threads_may_share_one(local: htp.Graph) -> None:
    inputs, outputs = arrays(local)
    bound = BoundCall(local, inputs, outputs)
    other = BoundCall(local, *arrays(local))
    problems: list[BaseException] = []

    def work(mine: BoundCall) -> None:
        try:
            for _ in range(100):
                mine.run()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(one,)) for one in (bound, bound, other, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert np.array_equal(outputs["y"], np.maximum(inputs["x"], 0))


LAYERS = 8


def layers_graph(context: htp.Context) -> htp.Graph:
    """A chain of additions, of low priority and in several steps."""
    graph = context.create_graph("long", priority="low")
    shape = (1, 256, 256, 8)
    x = last = graph.add_tensor("x", shape, "float32", kind="app_write")
    for layer in range(LAYERS):
        kind = "app_read" if layer == LAYERS - 1 else "native"
        total = graph.add_tensor("y" if layer == LAYERS - 1 else f"y{layer}", shape, "float32", kind=kind)
        graph.add_node("ElementWiseAdd", name=f"add{layer}", inputs=[last, x], outputs=[total])
        last = total
    graph.finalize()
    return graph


@pytest.mark.parametrize("priority", ["high", "low"])
def test_a_more_urgent_caller_has_its_turn_at_the_end_of_a_step_and_takes_no_queue(
    priority: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = htp.Backend()
    device = backend.create_device(transport="inprocess")
    low = layers_graph(device.create_context())
    other = relu_graph(device.create_context(), priority=priority)
    ones = np.ones((1, 256, 256, 8), np.float32)
    outputs = {"y": np.zeros_like(ones)}
    on_low, on_other = BoundCall(low, {"x": ones}, outputs), BoundCall(other, *arrays(other))
    for bound in (on_low, on_other):
        for _ in range(3):
            bound.run()
    seat, direct = low.loaded.callee.link.lease.host.seat, on_low._shortcut._direct
    order, began = list[object](), threading.Event()

    class WatchedSteps:
        """The first step of the long graph takes until somebody else comes."""

        def __init__(self, run: Any, name: str) -> None:
            self._run, self._name = run, name

        def step(self, index: int) -> None:
            order.append((self._name, index))
            if self._name == "low" and not index:
                began.set()
                wait_until(lambda: seat.guests or seat.wanted)
            self._run.step(index)

    wait_until(lambda: not device.link._core.executions.jobs)
    direct._run = WatchedSteps(direct._run, "low")
    on_other._shortcut._direct._run = WatchedSteps(on_other._shortcut._direct._run, "other")
    calls = counted(other, monkeypatch)
    thread = threading.Thread(target=on_low.run)
    thread.start()
    assert began.wait(PATIENCE_S)
    on_other.run()
    thread.join(PATIENCE_S)
    assert len(calls) == (priority == "low")
    expected = [("low", step) for step in range(low.steps)]
    expected.insert(1 if priority == "high" else low.steps, ("other", 0))
    assert order == expected
    assert np.array_equal(outputs["y"], ones * (LAYERS + 1))
    backend.free()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """All graphs are taken for short ones, however busy this machine is."""
    monkeypatch.setattr(DirectRun, "is_short", True)


def test_a_short_asynchronous_run_takes_no_queue(
    local: htp.Graph, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, ends = counted(local, monkeypatch), queue.SimpleQueue[tuple[Any, int]]()
    inputs, outputs = arrays(local)
    bound = BoundCall(local, inputs, outputs)
    for _ in range(100):  # more than may wait for their notifications
        outputs["y"][...] = 99
        bound.run_async(lambda *told: ends.put(told))
        assert ends.get(timeout=PATIENCE_S) == (None, 0)
        assert np.array_equal(outputs["y"], np.maximum(inputs["x"], 0))
    bound.run_async(None)
    assert calls == []


def test_a_short_run_that_fails_tells_so_and_later_ones_go_on(local: htp.Graph, short: None) -> None:
    ends = queue.SimpleQueue[int]()
    bound = BoundCall(local, *arrays(local))

    def fail(run: DirectRun, caller: object) -> None:
        raise htp.ExecutionError("no power")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectRun, "compute", fail)
        bound.run_async(lambda _, code: ends.put(code))
        assert ends.get(timeout=PATIENCE_S) == status.QNN_GRAPH_ERROR_GENERAL.code
    bound.run_async(lambda _, code: ends.put(code))
    assert ends.get(timeout=PATIENCE_S) == 0


def test_one_run_that_was_disturbed_does_not_make_a_graph_long(local: htp.Graph) -> None:
    link, number = local.loaded.callee.link, local.loaded.callee.number
    on_device = link._core_session.graphs[number]
    known = []
    for took_ns in (10_000, 9_000_000, 11_000, 9_000_000, 8_000_000):
        on_device.note_step(took_ns)
        known.append(on_device.step_ns)
    assert known[1:] == [10_000, 11_000, 11_000, 8_000_000]


def test_a_caller_waits_for_its_own_short_runs_and_computes_again(
    local: htp.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openhtp.device.direct.SHORT_STEP_NS", 1 << 62)
    device, link = local.context.device, local.loaded.callee.link
    hold(device)
    queued = local.execute_async(*arrays(local))
    assert not link.is_soon_clear()  # the device stands still
    release(device)
    queued.result(PATIENCE_S)
    wait_until(link.is_soon_clear)


def test_a_caller_does_not_wait_for_a_long_run_that_the_loop_has_not_taken_in(
    local: htp.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, waits = local.loaded.callee.link, list[Any]()
    held, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr("openhtp.runtime.links.thread_link.block", lambda *given: waits.append(given))
    local.execute_async(*arrays(local)).result(PATIENCE_S)  # memory for its data is registered with the loop
    link._core.post(lambda: (held.set(), go_on.wait(PATIENCE_S)))
    assert held.wait(PATIENCE_S)  # before that the caller would compute it itself
    queued = local.execute_async(*arrays(local))
    counts = []
    for most_ns in (0, 1 << 62):  # it is a long run, and a short one
        monkeypatch.setattr("openhtp.device.direct.SHORT_STEP_NS", most_ns)
        link.is_soon_clear()
        counts.append(len(waits))
    not_taken_in = not link._core.executions.jobs
    go_on.set()
    queued.result(PATIENCE_S)
    assert not_taken_in
    assert counts == [0, 1]


def test_a_client_that_does_not_hear_is_held_back(local: htp.Graph, short: None) -> None:
    """Short runs count among those whose notifications are still to return, as queued ones do."""
    bound = BoundCall(local, *arrays(local))
    heard, accepted = threading.Event(), list[int]()

    def work() -> None:
        for number in range(most_untold(local.context.queue_depth) + 2):
            bound.run_async(lambda *_: heard.wait(PATIENCE_S))
            accepted.append(number)

    thread = threading.Thread(target=work)
    thread.start()
    most = most_untold(local.context.queue_depth)
    wait_until(lambda: len(accepted) >= most)
    places = local.loaded.callee.places
    wait_until(lambda: places.waiters)
    assert len(accepted) == most
    heard.set()
    thread.join(PATIENCE_S)
    assert len(accepted) == most + 2


def test_a_device_process_queues_it(graph: htp.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(graph, monkeypatch)
    inputs, outputs = arrays(graph)
    bound = BoundCall(graph, inputs, outputs)
    for _ in range(3):
        bound.run()
    assert len(calls) == 3
    assert np.array_equal(outputs["y"], np.maximum(inputs["x"], 0))


def test_on_a_virtual_clock_it_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = relu_graph(virtual_device(htp.Backend(), step_ns=1_000_000).create_context())
    calls = counted(graph, monkeypatch)
    bound = BoundCall(graph, *arrays(graph))
    for _ in range(3):
        bound.run()
    assert len(calls) == 3
