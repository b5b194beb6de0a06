"""The queue's contract, by the same tests wherever there is a queue.

That is: in Python and through the table of functions of our own C library; on a device process, on a thread of
this process and on a device with a name; each with a queue depth that is configured, and with the default one; on
the virtual clock; and on the vendor's library.

``Rig.stall`` makes the device busy until ``Rig.go_on``: it is held, or the virtual device simply has not been run
yet. No test waits for time to pass.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.testing import hold, release, virtual_device
from openhtp.vendor.library import find_library
from tests.conftest import ramp, relu_graph
from tests.contract import c_table
from tests.waiting import PATIENCE_S

STEP_NS = 1_000_000
DEFAULT_DEPTH = 10


class Rig:
    """A device on one of the clocks, and what differs between them."""

    def __init__(self, clock: str, backend: Any, *, is_depth_given: bool = True, **options: Any) -> None:
        self.clock = clock
        self.backend = backend
        self._is_depth_given = is_depth_given
        self.device = (
            virtual_device(backend, step_ns=STEP_NS) if clock == "virtual" else backend.create_device(**options)
        )

    @property
    def is_c(self) -> bool:
        return self.clock.startswith("c ")

    @property
    def computing(self) -> htp.Device:
        return self.device.computing if self.is_c else self.device

    def context(self, depth: int) -> tuple[Any, int]:
        """A context whose queue is so deep, or has the default depth, and how deep that is."""
        if self._is_depth_given:
            return self.device.create_context(queue_depth=depth), depth
        return self.device.create_context(), DEFAULT_DEPTH

    def stall(self) -> None:
        hold(self.computing)

    def go_on(self) -> None:
        release(self.computing)


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


@pytest.fixture(params=["depth", "default depth"])
def is_depth_given(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "depth")


@pytest.fixture(params=["virtual", *PLACES, pytest.param("vendor", marks=pytest.mark.vendor)])
def rig(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, is_depth_given: bool) -> Iterator[Rig]:
    kind: str = request.param
    options = dict(PLACES.get(kind, {}))
    if kind.endswith("named"):
        options["OPENHTP_DEVICE" if kind.startswith("c ") else "name"] = request.getfixturevalue("named")
    if kind.startswith("c "):
        for variable, value in options.items():
            monkeypatch.setenv(variable, value)
        through_c = c_table.Backend(request.getfixturevalue("lib_dir"))
        yield Rig(kind, through_c, is_depth_given=is_depth_given)
        through_c.free()
        return
    if kind == "vendor" and find_library() is None:
        pytest.skip("the onnxruntime-qnn package is not installed")
    with htp.Backend(library="vendor" if kind == "vendor" else None) as backend:
        yield Rig(kind, backend, is_depth_given=is_depth_given, **options)


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
    context, depth = rig.context(30)
    graph = relu_graph(context)
    log = Log(depth)
    rig.stall()
    executions = [graph.execute_async({"x": ramp()}, notify=log, notify_param=n) for n in range(depth)]
    rig.go_on()
    executions[-1].result(PATIENCE_S)
    assert log.wait() == [(n, 0) for n in range(depth)]


def test_higher_priority_overtakes_waiting_ones(rig: Rig) -> None:
    context, _ = rig.context(4)
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
    context, depth = rig.context(3)
    graph = relu_graph(context)
    rig.stall()
    executions = [graph.execute_async({"x": ramp()}) for _ in range(depth)]
    assert context.pending == depth
    signal = rig.backend.create_signal(timeout_us=3000)
    # A full queue blocks: with a timeout signal the call gives up and is refused, not accepted.
    if rig.clock != "virtual":
        with pytest.raises(htp.TimedOut, match="place in the queue"):
            graph.execute_async({"x": ramp()}, signal=signal)
        assert context.pending == depth
    rig.go_on()
    one_more = graph.execute_async({"x": ramp()})
    for execution in (*executions, one_more):
        execution.result(PATIENCE_S)
    assert context.pending == 0


def test_blocked_submitter_goes_on_when_a_place_is_free(rig: Rig) -> None:
    context, depth = rig.context(1)
    graph = relu_graph(context)
    results = [graph.execute_async({"x": ramp() + n}) for n in range(depth + 4)]  # blocks four times
    for n, execution in enumerate(results):
        # The vendor's library is off by one unit in the last place of a float32.
        np.testing.assert_allclose(execution.result(PATIENCE_S)["y"], np.maximum(ramp() + n, 0), rtol=1e-6)


def test_abort_ends_a_waiting_execution_only(rig: Rig) -> None:
    context, _ = rig.context(3)
    graph = relu_graph(context)
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
    context, _ = rig.context(3)
    graph = relu_graph(context)
    rig.stall()
    blocker = graph.execute_async({"x": ramp()})
    late = graph.execute_async({"x": ramp()}, signal=rig.backend.create_signal(timeout_us=1500))
    early = graph.execute_async({"x": ramp()}, signal=rig.backend.create_signal(timeout_us=60_000_000))
    assert isinstance(late.exception(PATIENCE_S), htp.TimedOut)
    rig.go_on()
    assert blocker.exception(PATIENCE_S) is None
    assert early.exception(PATIENCE_S) is None


def test_what_is_said_of_asynchronous_executions_is_true(rig: Rig) -> None:
    if not rig.is_c:
        assert rig.backend.has_capability("GRAPH_SUPPORT_ASYNC_EXECUTION")
    else:
        ask = rig.backend.held.library.ask
        # Supported: asynchronous executions, and signals of theirs.
        assert [ask("propertyHasCapability", key) for key in (304, 309)] == [0, 0]
    context, _ = rig.context(2)
    execution = relu_graph(context).execute_async({"x": ramp()}, signal=rig.backend.create_signal())
    np.testing.assert_allclose(execution.result(PATIENCE_S)["y"], np.maximum(ramp(), 0), rtol=1e-6)


def test_cancel(rig: Rig) -> None:
    if rig.is_c:
        pytest.skip("the C interface cancels by signals alone")
    context, _ = rig.context(2)
    graph = relu_graph(context)
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
    context, _ = rig.context(4)
    a, b = relu_graph(context, "a"), relu_graph(context, "b")
    queued = [a.execute_async({"x": ramp()}) for _ in range(3)]
    b.execute({"x": ramp()})
    # Equal standing: what was queued before the synchronous call was also run before it, so no one waits now.
    rig.stall()
    for execution in queued:
        assert execution.exception(PATIENCE_S) is None


def test_every_accepted_call_notifies_exactly_once(rig: Rig) -> None:
    context, depth = rig.context(120)
    graph = relu_graph(context)
    log = Log(depth)
    signals = [rig.backend.create_signal() if n % 3 == 0 else None for n in range(depth)]
    rig.stall()
    executions = [
        graph.execute_async({"x": ramp()}, notify=log, notify_param=n, signal=signals[n]) for n in range(depth)
    ]
    for n, signal in enumerate(signals):
        if signal is not None and n % 2 == 0:
            signal.trigger()
    rig.go_on()
    for execution in executions:
        execution.exception(PATIENCE_S)
    seen = log.wait()
    assert sorted(param for param, _ in seen) == list(range(depth))
    aborted = {param for param, status in seen if status == 6031}
    assert aborted == {n for n in range(1, depth) if n % 6 == 0} | ({0} & aborted)


def test_a1_first_calls_come_from_many_threads_at_once(rig: Rig) -> None:
    if rig.clock == "virtual":
        pytest.skip("the virtual device stands still until its only thread runs it")
    context, _ = rig.context(6)
    graphs = [relu_graph(context, f"g{n}") for n in range(3)]
    together = threading.Barrier(6)
    failed: list[BaseException] = []

    def call(number: int) -> None:
        x = ramp() - number
        try:
            together.wait(PATIENCE_S)
            if number % 2:
                y = graphs[0].execute_async({"x": x}).result(PATIENCE_S)["y"]
            else:
                y = graphs[number // 3 + 1].execute({"x": x})["y"]
            np.testing.assert_allclose(y, np.maximum(x, 0), rtol=1e-6)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not failed


def test_a2_new_graphs_are_made_after_asynchronous_calls(rig: Rig) -> None:
    context, _ = rig.context(3)
    first = relu_graph(context, "first")
    first.execute_async({"x": ramp()}).result(PATIENCE_S)
    second = relu_graph(context, "second")
    for graph in (second, first, second):
        y = graph.execute_async({"x": ramp()}).result(PATIENCE_S)["y"]
        np.testing.assert_allclose(y, np.maximum(ramp(), 0), rtol=1e-6)


def test_a_callback_may_call_back_in(rig: Rig) -> None:
    if rig.clock == "virtual":
        pytest.skip("the virtual device stands still until its only thread runs it")
    context, depth = rig.context(2)
    graph, other = relu_graph(context), relu_graph(context, "other")
    log = Log(depth + 4)
    left = [4]

    def again(param: object, status: int) -> None:
        other.execute({"x": ramp()})
        if left[0]:
            left[0] -= 1
            graph.execute_async({"x": ramp()}, notify=again, notify_param=param)
        log(param, status)

    for n in range(depth):
        graph.execute_async({"x": ramp()}, notify=again, notify_param=n)
    assert {status for _, status in log.wait()} == {0}


def test_a_context_is_freed_with_a_full_queue(rig: Rig) -> None:
    if rig.clock == "virtual":
        pytest.skip("the virtual device stands still until its only thread runs it")
    context, depth = rig.context(3)
    graph = relu_graph(context)
    log = Log(depth)
    rig.stall()
    for n in range(depth):
        graph.execute_async({"x": ramp()}, notify=log, notify_param=n)
    freeing = threading.Thread(target=context.free)
    freeing.start()
    rig.go_on()
    freeing.join(PATIENCE_S)
    seen = log.wait()
    assert sorted(param for param, _ in seen) == list(range(depth))  # each once, however it ended
    assert {status for _, status in seen} <= {0, 6039}
    survivor, _ = rig.context(3)
    relu_graph(survivor).execute({"x": ramp()})


def test_a_freed_context_leaves_the_memory_of_its_clients_alone(rig: Rig) -> None:
    """Also what its first execution was about to write, which had been given the device already."""
    if rig.clock == "virtual":
        pytest.skip("the virtual device stands still until its only thread runs it")
    context, depth = rig.context(3)
    graph = relu_graph(context)
    outputs = [np.zeros_like(ramp()) for _ in range(depth)]
    log = Log(depth)
    rig.stall()
    for n in range(depth):
        graph.execute_async({"x": ramp() + 1}, {"y": outputs[n]}, notify=log, notify_param=n)
    context.free()
    kept = [output.copy() for output in outputs]
    rig.go_on()
    log.wait()
    survivor, _ = rig.context(3)
    relu_graph(survivor).execute({"x": ramp()})
    for output, before in zip(outputs, kept, strict=True):
        np.testing.assert_array_equal(output, before)


def test_an_execution_reads_what_those_before_it_write(rig: Rig) -> None:
    """Also where they are in another context; nobody waits in between, and the raw buffers are the same."""
    contexts = [rig.context(8)[0], rig.context(8)[0]]
    parts = [sum_graph(contexts[n % 2], f"part {n}") for n in range(4)]
    x = ramp()
    buffers = [np.full_like(x, 1000), np.full_like(x, 2000), np.full_like(x, 3000), np.full_like(x, 4000)]
    log = Log(8)
    rig.stall()
    last = None
    for turn in range(2):
        taken = x
        for n, (part, buffer) in enumerate(zip(parts, buffers, strict=True)):
            last = part.execute_async({"x": taken}, {"y": buffer}, notify=log, notify_param=(turn, n))
            taken = buffer
    rig.go_on()
    assert last is not None
    last.result(PATIENCE_S)
    assert sorted(log.wait()) == [((turn, n), 0) for turn in range(2) for n in range(4)]
    for n, buffer in enumerate(buffers, 1):
        np.testing.assert_allclose(buffer, x * 2**n, rtol=1e-6)


def test_one_that_waits_for_data_is_aborted_and_times_out(rig: Rig) -> None:
    context, _ = rig.context(8)
    first, second = sum_graph(context, "first"), sum_graph(context, "second")
    x, middle = ramp(), np.zeros_like(ramp())
    abort = rig.backend.create_signal()
    rig.stall()
    begun = first.execute_async({"x": x}, {"y": middle})
    aborted = second.execute_async({"x": middle}, {"y": np.zeros_like(x)}, signal=abort)
    timeout = rig.backend.create_signal(timeout_us=1500)
    late = second.execute_async({"x": middle}, {"y": np.zeros_like(x)}, signal=timeout)
    followed = second.execute_async({"x": middle}, {"y": np.zeros_like(x)})
    abort.trigger()
    if rig.clock == "virtual":
        rig.go_on()  # its time does not pass by itself
    assert isinstance(aborted.exception(PATIENCE_S), htp.Aborted)
    if rig.clock != "virtual":
        assert isinstance(late.exception(PATIENCE_S), htp.TimedOut)
        rig.go_on()
    assert begun.exception(PATIENCE_S) is None
    np.testing.assert_allclose(followed.result(PATIENCE_S)["y"], x * 4, rtol=1e-6)


def test_a_synchronous_call_reads_what_was_queued_before_it(rig: Rig) -> None:
    context, _ = rig.context(8)
    first, second = sum_graph(context, "first"), sum_graph(context, "second")
    x, middle = ramp((1, 8)), np.zeros_like(ramp())
    for _ in range(3):
        middle[:] = -1
        queued = [first.execute_async({"x": x}, {"y": middle}) for _ in range(3)]
        np.testing.assert_allclose(second.execute({"x": middle})["y"], x * 4, rtol=1e-6)
        for execution in queued:
            execution.result(PATIENCE_S)


def sum_graph(context: Any, name: str) -> Any:
    """``y = x + x``, to be told from what lay there before."""
    graph = context.create_graph(name)
    x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
    y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
    graph.add_node("ElementWiseAdd", name="sum", inputs=[x, x], outputs=[y])
    graph.finalize()
    return graph
