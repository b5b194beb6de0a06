"""Backend, device, context, graph, memory, signal, profile, log: options, rules of life, and clear refusals."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest

import openhtp as htp
from openhtp.core import status as st
from openhtp.runtime import lifecycle
from openhtp.runtime.lifecycle import Life, State
from openhtp.testing import hold, release
from tests.conftest import ramp, relu_graph


@pytest.mark.parametrize("depth", [0, 301, -1, 2.5, "ten", None, True])
def test_bad_queue_depths(shared_device: htp.Device, depth: object) -> None:
    with pytest.raises(htp.InvalidArgument, match="1 to 300") as caught:
        shared_device.create_context(queue_depth=depth)  # type: ignore[arg-type]
    assert caught.value.name == "QNN_CONTEXT_ERROR_INVALID_CONFIG"


@pytest.mark.parametrize("depth", [1, 10, 300])
def test_queue_depth_is_fixed_for_life(shared_device: htp.Device, depth: int) -> None:
    with shared_device.create_context(queue_depth=depth) as context:
        context.set_config(queue_depth=5)
        assert context.queue_depth == depth


def test_default_queue_depth_and_binaries_carry_none(shared_device: htp.Device) -> None:
    with shared_device.create_context(queue_depth=77) as context:
        relu_graph(context)
        binary = context.get_binary()
    with shared_device.create_context_from_binary(binary) as restored:
        assert restored.queue_depth == 10


def test_binary_gives_the_same_results_and_ids(shared_device: htp.Device, context: htp.Context) -> None:
    first, second = relu_graph(context, "first"), relu_graph(context, "second", (2, 3), priority="high")
    binary = context.get_binary()
    assert context.get_binary_size() == len(binary)
    with shared_device.create_context_from_binary(binary, queue_depth=50) as restored:
        assert list(restored.graphs) == ["first", "second"]
        for graph in (first, second):
            twin = restored.graph(graph.name)
            x = ramp(graph.tensors["x"].shape)
            np.testing.assert_array_equal(twin.execute({"x": x})["y"], graph.execute({"x": x})["y"])
            assert twin.tensors["x"].id == graph.tensors["x"].id
            # Tensors of whoever built the binary still fit, by id.
            np.testing.assert_array_equal(twin.execute({graph.tensors["x"].id: x})["y"], np.maximum(x, 0))
        assert restored.graph("second").priority is htp.Priority.HIGH
        with pytest.raises(htp.WrongState, match="takes no new graphs"):
            restored.create_graph("third")


@pytest.mark.parametrize("cut", [0, 1, 50, -1])
def test_cut_binaries_are_refused(shared_device: htp.Device, graph: htp.Graph, cut: int) -> None:
    with pytest.raises(htp.BadBinary):
        shared_device.create_context_from_binary(graph.context.get_binary()[:cut])


def test_flipped_bits_in_a_binary_are_noticed(shared_device: htp.Device, graph: htp.Graph) -> None:
    binary = bytearray(graph.context.get_binary())
    for place in range(0, len(binary), max(1, len(binary) // 60)):
        binary[place] ^= 0x10
        with pytest.raises(htp.BadBinary):
            shared_device.create_context_from_binary(binary)
        binary[place] ^= 0x10


def test_binary_of_the_wrong_kind(shared_device: htp.Device) -> None:
    with pytest.raises(htp.InvalidArgument, match="expected bytes"):
        shared_device.create_context_from_binary("path.bin")  # type: ignore[arg-type]


def test_unknown_enabled_graph(shared_device: htp.Device, graph: htp.Graph) -> None:
    with pytest.raises(htp.UsageError, match="'nothing'"):
        shared_device.create_context_from_binary(graph.context.get_binary(), enable_graphs=["nothing"])


def test_saving_before_finalize(context: htp.Context) -> None:
    with pytest.raises(htp.WrongState, match="no graphs"):
        context.get_binary()
    context.create_graph("g")
    with pytest.raises(htp.WrongState) as caught:
        context.get_binary()
    assert caught.value.name == "QNN_CONTEXT_ERROR_NOT_FINALIZED"


def test_building_after_finalize(graph: htp.Graph) -> None:
    with pytest.raises(htp.WrongState) as caught:
        graph.add_tensor("z", (1,), "float32")
    assert (caught.value.name, caught.value.code) == ("QNN_GRAPH_ERROR_GRAPH_FINALIZED", 6024)
    with pytest.raises(htp.WrongState):
        graph.add_node("Relu", inputs=["x"], outputs=["y"])
    with pytest.raises(htp.WrongState):
        graph.finalize()
    graph.execute({"x": ramp()})


@pytest.mark.parametrize("name", ["", None, 5])
def test_bad_graph_names(context: htp.Context, name: object) -> None:
    with pytest.raises(htp.InvalidArgument) as caught:
        context.create_graph(name)  # type: ignore[arg-type]
    assert caught.value.name == "QNN_GRAPH_ERROR_INVALID_NAME"


def test_graph_name_taken_or_unknown(graph: htp.Graph) -> None:
    with pytest.raises(htp.NameClash, match="'g' already exists"):
        graph.context.create_graph("g")
    with pytest.raises(htp.InvalidArgument, match="it has 'g'") as caught:
        graph.context.graph("h")
    assert caught.value.name == "QNN_GRAPH_ERROR_GRAPH_DOES_NOT_EXIST"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("vtcm_mb", 0),
        ("vtcm_mb", "4"),
        ("hvx_threads", 0),
        ("hvx_threads", 1000),
        ("precision", "float8"),
        ("priority", "urgent"),
        ("priority", 501),
        ("priority", -1),
    ],
)
def test_bad_graph_options(context: htp.Context, option: str, value: object) -> None:
    with pytest.raises(htp.InvalidArgument, match="expected"):
        context.create_graph("g", **{option: value})  # type: ignore[arg-type]
    assert context.graphs == {}


def test_vtcm_larger_than_the_device_is_refused_at_finalize(context: htp.Context) -> None:
    with pytest.raises(htp.OutOfMemory, match=r"64 MiB.*8 MiB"):
        relu_graph(context, vtcm_mb=64)
    with pytest.raises(htp.InvalidArgument, match="40 HVX threads, the device has"):
        relu_graph(context, "h", hvx_threads=40)


def test_priority_cannot_change_after_the_first_execution(graph: htp.Graph) -> None:
    graph.set_config(priority="high")
    assert graph.priority is htp.Priority.HIGH
    graph.execute({"x": ramp()})
    with pytest.raises(htp.WrongState, match="cannot change after its first execution"):
        graph.set_config(priority="low")
    assert graph.priority is htp.Priority.HIGH
    with pytest.raises(htp.WrongState):
        graph.context.set_config(priority="low")


def test_context_priority_reaches_all_graphs(context: htp.Context) -> None:
    graphs = [relu_graph(context, name) for name in ("a", "b")]
    context.set_config(priority="critical")
    assert [graph.priority.name for graph in graphs] == ["CRITICAL", "CRITICAL"]


@pytest.mark.parametrize(
    "options",
    [
        {"transport": "pigeon"},
        {"soc": "SM0001"},
        {"policy": "lottery"},
        {"platform": "amiga"},
        {"threads": 0},
        {"name": "../up"},
    ],
    ids=str,
)
def test_bad_device_options(backend: htp.Backend, options: dict[str, object]) -> None:
    with pytest.raises(htp.InvalidArgument):
        backend.create_device(**options)  # type: ignore[arg-type]


def test_freed_objects_say_so(backend: htp.Backend) -> None:
    device = backend.create_device(transport="inprocess")
    context = device.create_context()
    memory = context.register_memory(8)
    signal, profile = backend.create_signal(), backend.create_profile()
    for item, name in (
        (signal, "SIGNAL"),
        (profile, "PROFILE"),
        (memory, "MEM"),
        (context, "CONTEXT"),
        (device, "DEVICE"),
    ):
        item.free()
        with pytest.raises(htp.InvalidHandle, match="freed") as caught:
            item.free()
        assert caught.value.name == f"QNN_{name}_ERROR_INVALID_HANDLE"
    backend.free()
    with pytest.raises(htp.InvalidHandle):
        backend.create_device()
    backend.__init__()  # type: ignore[misc]  # so that the fixture has something to free


def test_life_cycle_table_is_complete() -> None:
    """Whatever is refused raises one of ours, with a name and a number."""
    kinds = {kind for kind, _ in lifecycle._ALLOWED}
    calls = {call for allowed in lifecycle._ALLOWED.values() for call in allowed}
    for kind in kinds:
        for state in State:
            for call in calls:
                life = Life(kind, "x", state)
                if call in lifecycle._ALLOWED.get((kind, state), ()):
                    life.require(call)
                    continue
                with pytest.raises(htp.QnnError) as caught:
                    life.require(call)
                assert caught.value.code > 0
                assert life.state is state


def test_freed_is_final() -> None:
    life = Life("context", "x")
    life.become(State.FREED)
    life.become(State.LIVE)
    assert life.state is State.FREED


def test_memory_layout(context: htp.Context) -> None:
    graph = relu_graph(context, shape=(1, 10))
    memory = context.register_memory(256)
    x, y = memory.array("x"), memory.array(graph.tensors["y"])
    assert memory.array("x") is x
    assert context._place_of(x).offset == 0  # type: ignore[union-attr]
    assert context._place_of(y).offset == 64  # type: ignore[union-attr]
    with pytest.raises(htp.InvalidArgument, match="needs 40 bytes at offset 240"):
        memory.array("y", offset=240)
    with pytest.raises(htp.InvalidArgument, match="no graph of this context has it"):
        memory.array("nothing")
    relu_graph(context, "other", (1, 11))
    with pytest.raises(htp.InvalidArgument, match="different shapes"):
        context.register_memory(64).array("x")


@pytest.mark.parametrize("size", [0, -1, "8", None, 1.5])
def test_bad_memory_sizes(context: htp.Context, size: object) -> None:
    with pytest.raises(htp.InvalidArgument, match="expected a whole number above 0"):
        context.register_memory(size)  # type: ignore[arg-type]


def test_session_memory_is_bounded(context: htp.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session addresses 3.75 GB; the device refuses more, and what was there before goes on."""
    from openhtp.device import sessions

    session = sessions.Session(1, pid=1, label="")
    session.reserve(sessions.SESSION_LIMIT_BYTES - 10, "weights")
    with pytest.raises(htp.OutOfMemory, match=r"3.75 GiB") as caught:
        session.reserve(11, "the memory")
    assert caught.value.name == "QNN_CONTEXT_ERROR_MEM_ALLOC"
    assert session.bytes_used == sessions.SESSION_LIMIT_BYTES - 10


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
        while not context._places._waiters:
            threading.Event().wait(0.001)
        abort.trigger()
        thread.join(5)
        release(shared_device)
        assert [type(error) for error in caught] == [htp.Aborted]
        assert not abort.in_use
        assert first.exception(5) is None


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
    while abort._target is None:
        threading.Event().wait(0.001)
    abort.trigger()
    thread.join(5)
    release(device)
    assert [type(error) for error in caught] == [htp.Aborted]
    assert blocker.exception(5) is None


@pytest.mark.parametrize("level", ["basic", "detailed"])
def test_profile(shared_backend: htp.Backend, graph: htp.Graph, level: str) -> None:
    profile = shared_backend.create_profile(level)
    graph.execute_async({"x": ramp()}, profile=profile).result(5)
    values = {event.type: event.value for event in profile.events}
    assert values[400] >= values[3001] >= values[3002] >= values[3004] >= values[3012]
    assert values[3009] == 0
    assert (profile.event(404) is not None) == (level == "detailed")
    graph.execute({"x": ramp()}, profile=profile)  # used again: filled anew
    assert profile.event(400) is not None


def test_finalize_profile(shared_backend: htp.Backend, context: htp.Context) -> None:
    graph = context.create_graph("g")
    x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
    y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
    graph.add_node("Relu", inputs=[x], outputs=[y])
    profile = shared_backend.create_profile()
    graph.finalize(profile=profile)
    assert [event.type for event in profile.events] == [300]


def test_bad_profile_level(shared_backend: htp.Backend) -> None:
    with pytest.raises(htp.InvalidArgument, match="basic or detailed"):
        shared_backend.create_profile("everything")


def test_notify_that_raises_is_logged_and_harms_nobody(graph: htp.Graph, caplog: pytest.LogCaptureFixture) -> None:
    def bad(param: object, status: int) -> None:
        raise RuntimeError("my own fault")

    done = threading.Event()
    graph.execute_async({"x": ramp()}, notify=bad)
    graph.execute_async({"x": ramp()}, notify=lambda p, s: done.set())
    assert done.wait(5)
    assert "my own fault" in caplog.text


def test_notify_that_blocks_delays_only_later_notifications(graph: htp.Graph) -> None:
    go_on, blocked, later = threading.Event(), threading.Event(), threading.Event()

    def slow(param: object, status: int) -> None:
        blocked.set()
        go_on.wait(10)

    graph.execute_async({"x": ramp()}, notify=slow)
    assert blocked.wait(5)
    # More than the queue holds: places are given back and results arrive although a callback hangs.
    executions = [graph.execute_async({"x": ramp()}, notify=lambda p, s: later.set()) for _ in range(50)]
    for execution in executions:
        execution.result(5)
    assert not later.is_set()
    go_on.set()
    assert later.wait(5)


def test_slow_notify_is_logged(graph: htp.Graph, caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()
    graph.execute_async({"x": ramp()}, notify=lambda p, s: threading.Event().wait(0.02))
    graph.execute_async({"x": ramp()}, notify=lambda p, s: done.set())
    assert done.wait(5)
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

    from openhtp.report.chrome import records_to_chrome
    from openhtp.report.recording import recording_to_records

    device = backend.create_device()
    graph = relu_graph(device.create_context())
    device.start_trace()
    for _ in range(5):
        graph.execute({"x": ramp()})
    recorded = device.stop_trace()
    trace = json.loads(records_to_chrome(recording_to_records(recorded)))
    spans = [event["name"] for event in trace["traceEvents"] if event["ph"] == "X"]
    assert spans.count("step 0") == 5
    assert spans.count("running") == 5
    assert device.stop_trace()["events"] == []


def test_interrupted_synchronous_call_leaves_the_device_usable(
    shared_device: htp.Device, graph: htp.Graph
) -> None:
    """Ctrl-C while waiting: the call ends, its place is given back, and nothing else notices."""
    import signal as os_signal

    def interrupt() -> None:
        os_signal.pthread_kill(threading.main_thread().ident, os_signal.SIGINT)  # type: ignore[arg-type]

    before = os_signal.signal(os_signal.SIGINT, os_signal.default_int_handler)
    hold(shared_device)
    timer = threading.Timer(0.05, interrupt)
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            graph.execute({"x": ramp()})
    finally:
        timer.join()
        release(shared_device)
        os_signal.signal(os_signal.SIGINT, before)
    assert graph.context.pending == 0
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
