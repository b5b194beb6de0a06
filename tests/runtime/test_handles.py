"""Signals, profiles, logs, callbacks and interrupts: what a call may carry, and how it fails."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest

import openhtp as htp
from openhtp.core import status as st
from openhtp.testing import hold, release
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S, wait_until


@pytest.mark.parametrize("timeout", [0, -5, 1.5, "10", True])
def test_bad_timeouts(shared_backend: htp.Backend, timeout: object) -> None:
    with pytest.raises(htp.InvalidArgument) as caught:
        shared_backend.create_signal(timeout_us=timeout)  # type: ignore[arg-type]
    assert caught.value.name == "QNN_SIGNAL_ERROR_INVALID_ARGUMENT"


def test_trigger_needs_an_abort_signal_in_use(shared_backend: htp.Backend) -> None:
    with pytest.raises(htp.WrongState) as caught:
        shared_backend.create_signal().trigger()
    assert caught.value.name == "QNN_SIGNAL_ERROR_SIGNAL_IDLE"
    with pytest.raises(htp.WrongState) as caught:
        shared_backend.create_signal(timeout_us=5).trigger()
    assert caught.value.name == "QNN_SIGNAL_ERROR_INCOMPATIBLE_SIGNAL_TYPE"


def test_abort_reaches_a_call_that_waits_for_a_place(
    shared_backend: htp.Backend, shared_device: htp.Device
) -> None:
    with shared_device.create_context(queue_depth=1) as context:
        graph = relu_graph(context)
        abort = shared_backend.create_signal()
        caught: list[BaseException] = []

        def submit() -> None:
            try:
                graph.execute_async({"x": ramp()}, signal=abort)
            except BaseException as error:
                caught.append(error)

        hold(shared_device)
        first = graph.execute_async({"x": ramp()})
        thread = threading.Thread(target=submit)
        thread.start()
        while not context.opened.places.waiters:
            threading.Event().wait(0.001)
        abort.trigger()
        thread.join(PATIENCE_S)
        release(shared_device)
        assert [type(error) for error in caught] == [htp.Aborted]
        assert not abort.in_use
        assert first.exception(PATIENCE_S) is None


def test_abort_of_a_synchronous_execution(shared_backend: htp.Backend, graph: htp.Graph) -> None:
    device = graph.context.device
    abort = shared_backend.create_signal()
    hold(device)
    blocker = relu_graph(graph.context, "blocker").execute_async({"x": ramp()})
    caught: list[BaseException] = []

    def run() -> None:
        try:
            graph.execute({"x": ramp()}, signal=abort)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while abort.interrupt.target is None:
        threading.Event().wait(0.001)
    abort.trigger()
    thread.join(PATIENCE_S)
    release(device)
    assert [type(error) for error in caught] == [htp.Aborted]
    assert blocker.exception(PATIENCE_S) is None


@pytest.mark.parametrize("level", ["basic", "detailed"])
def test_profile(shared_backend: htp.Backend, graph: htp.Graph, level: str) -> None:
    profile = shared_backend.create_profile(level)
    graph.execute_async({"x": ramp()}, profile=profile).result(PATIENCE_S)
    values = {event.type: event.value for event in profile.events()}
    assert values[400] >= values[3001] >= values[3002] >= values[3004] >= values[3012]
    assert values[3009] == 0
    assert (profile.event(404) is not None) == (level == "detailed")
    graph.execute({"x": ramp()}, profile=profile)  # used again: filled anew
    assert [event.type for event in profile.events()].count(400) == 1


def test_finalize_profile(shared_backend: htp.Backend, context: htp.Context) -> None:
    graph = context.create_graph("g")
    x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
    y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
    graph.add_node("Relu", inputs=[x], outputs=[y])
    profile = shared_backend.create_profile()
    graph.finalize(profile=profile)
    assert [event.type for event in profile.events()] == [2001, 2002, 2003, 300]


def test_bad_profile_level(shared_backend: htp.Backend) -> None:
    with pytest.raises(htp.InvalidArgument, match="basic, detailed, linting or optrace"):
        shared_backend.create_profile("everything")


def test_notify_that_raises_is_logged_and_harms_nobody(graph: htp.Graph, caplog: pytest.LogCaptureFixture) -> None:
    def bad(param: object, status: int) -> None:
        raise RuntimeError("my own fault")

    done = threading.Event()
    graph.execute_async({"x": ramp()}, notify=bad)
    graph.execute_async({"x": ramp()}, notify=lambda p, s: done.set())
    assert done.wait(PATIENCE_S)
    assert "my own fault" in caplog.text


def test_notify_that_blocks_delays_only_later_notifications(graph: htp.Graph) -> None:
    go_on, blocked, later = threading.Event(), threading.Event(), threading.Event()

    def slow(param: object, status: int) -> None:
        blocked.set()
        go_on.wait(PATIENCE_S)

    graph.execute_async({"x": ramp()}, notify=slow)
    assert blocked.wait(PATIENCE_S)
    # More than the queue holds: places are given back and results arrive although a callback hangs.
    executions = [graph.execute_async({"x": ramp()}, notify=lambda p, s: later.set())]
    executions += [graph.execute_async({"x": ramp()}) for _ in range(50)]
    for execution in executions:
        execution.result(PATIENCE_S)
    assert not later.is_set()
    go_on.set()
    assert later.wait(PATIENCE_S)


def test_slow_notify_is_logged(graph: htp.Graph, caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()
    graph.execute_async({"x": ramp()}, notify=lambda p, s: threading.Event().wait(0.02))
    graph.execute_async({"x": ramp()}, notify=lambda p, s: done.set())
    assert done.wait(PATIENCE_S)
    assert "later notifications waited" in caplog.text


def test_log_callback(shared_backend: htp.Backend) -> None:
    seen: list[tuple[htp.LogLevel, str]] = []
    log = shared_backend.create_log("warn", lambda level, t, text: seen.append((level, text)))
    logging.getLogger("openhtp.test").warning("look")
    logging.getLogger("openhtp.test").info("not this")
    log.set_log_level("info")
    logging.getLogger("openhtp.test").info("but this")
    log.free()
    logging.getLogger("openhtp.test").warning("too late")
    assert [text for _, text in seen] == ["look", "but this"]
    assert seen[0][0] is htp.LogLevel.WARN
    with pytest.raises(htp.InvalidArgument):
        shared_backend.create_log("loud", print)


def test_properties(shared_backend: htp.Backend) -> None:
    assert shared_backend.has_capability("QNN_PROPERTY_GRAPH_SUPPORT_ASYNC_EXECUTION")
    assert shared_backend.has_capability(304)
    assert not shared_backend.has_capability("GRAPH_SUPPORT_SUBGRAPH")
    with pytest.raises(htp.UsageError) as caught:
        shared_backend.has_capability(99999)
    assert caught.value.status == st.QNN_PROPERTY_ERROR_UNKNOWN_KEY


def test_trace_of_a_run(backend: htp.Backend) -> None:
    import json

    from openhtp.report.chrome import marks_to_chrome
    from openhtp.report.lanes import trace_to_marks

    device = backend.create_device()
    graph = relu_graph(device.create_context())
    device.start_trace()
    for _ in range(5):
        graph.execute({"x": ramp()})
    recorded = device.stop_trace()
    trace = json.loads(marks_to_chrome(trace_to_marks(recorded)))
    spans = [event["name"] for event in trace["traceEvents"] if event["ph"] == "X"]
    assert spans.count("step 0") == 5
    assert spans.count("running") == 5
    assert device.stop_trace().records == []


def test_interrupted_synchronous_call_leaves_the_device_usable(
    shared_device: htp.Device, graph: htp.Graph
) -> None:
    """Ctrl-C while waiting: the call ends, its place is given back, and nothing else notices."""
    import signal as os_signal

    def interrupt() -> None:
        wait_until(lambda: graph.context.pending)
        os_signal.pthread_kill(threading.main_thread().ident, os_signal.SIGINT)  # type: ignore[arg-type]

    before = os_signal.signal(os_signal.SIGINT, os_signal.default_int_handler)
    hold(shared_device)
    timer = threading.Thread(target=interrupt)
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            graph.execute({"x": ramp()})
    finally:
        timer.join()
        release(shared_device)
        os_signal.signal(os_signal.SIGINT, before)
    wait_until(lambda: not graph.context.pending)  # its place is free when the device has let go of it
    for number in range(5):
        np.testing.assert_array_equal(graph.execute({"x": ramp() + number})["y"], np.maximum(ramp() + number, 0))


def test_no_room_for_shared_memory(shared_device: htp.Device) -> None:
    """A full disk (here: a file size limit) fails the one call that needs room, and nothing else."""
    import resource

    with shared_device.create_context() as context:
        graph = relu_graph(context)
        big = relu_graph(context, "big", (1, 1 << 20))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
        try:
            with pytest.raises(htp.OutOfMemory, match="of shared memory"):
                context.register_memory(1 << 20)
            with pytest.raises(htp.OutOfMemory, match="of shared memory"):
                big.execute_async({"x": ramp((1, 1 << 20))})
            assert context.pending == 0
            graph.execute({"x": ramp()})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        big.execute({"x": ramp((1, 1 << 20))})


def test_tensor_of_another_graph_is_no_key(graph: htp.Graph) -> None:
    other = relu_graph(graph.context, "other")
    with pytest.raises(htp.InvalidArgument, match="'x' is not an input of this graph"):
        graph.execute({other.tensors["x"]: ramp()})


def test_a_log_takes_nothing_from_others_and_leaves_nothing(
    backend: htp.Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """A level that it set would go on holding back what the program wants to see."""
    logger = logging.getLogger("openhtp")
    before, seen = logger.level, []
    with caplog.at_level(logging.INFO):
        errors = backend.create_log("error", lambda *_: None)
        logger.info("still seen")
        debug = backend.create_log("debug", lambda level, _, text: seen.append(text))
        logger.debug("for one")
        debug.free()
        logger.debug("for nobody")
        errors.free()
    assert "still seen" in caplog.text
    assert seen == ["for one"]
    assert logger.level == before
