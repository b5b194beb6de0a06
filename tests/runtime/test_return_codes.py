"""Every return code of the asynchronous execute call, provoked for real. Nothing is notified by a refused call."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import pytest

import openhtp as htp
from openhtp.core import status as st
from openhtp.rpc.shm import SharedBuffer
from openhtp.runtime.objects.mem import ContextMemory
from openhtp.testing import fail_next, hold, release
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S


def refused(graph: htp.Graph, *args: object, **kwargs: object) -> htp.QnnError:
    """The error of a call that must be refused, without a notification and without changing the graph."""
    notified: list[int] = []
    with pytest.raises(htp.QnnError) as caught:
        graph.execute_async(*args, notify=lambda p, s: notified.append(s), **kwargs)  # type: ignore[arg-type]
    assert notified == []
    return caught.value


def test_success(graph: htp.Graph) -> None:
    assert graph.execute_async({"x": ramp()}).exception(PATIENCE_S) is None


def test_invalid_handle(context: htp.Context) -> None:
    graph = relu_graph(context)
    other = context.create_graph("other")
    x = graph.tensors["x"]
    with pytest.raises(htp.InvalidHandle) as caught:
        other.add_node("Relu", inputs=[x], outputs=[x])
    assert caught.value.name == "QNN_GRAPH_ERROR_INVALID_ARGUMENT"
    context.free()
    with pytest.raises(htp.InvalidHandle) as caught:
        graph.set_config(priority="high")
    assert caught.value.name == "QNN_GRAPH_ERROR_INVALID_HANDLE"
    assert caught.value.code == 6001


def test_not_finalized(context: htp.Context) -> None:
    graph = context.create_graph("g")
    error = refused(graph, {"x": ramp()})
    assert (error.name, error.code) == ("QNN_GRAPH_ERROR_GRAPH_NOT_FINALIZED", 6023)


def test_subgraph(context: htp.Context) -> None:
    sub = context.create_graph("g").create_subgraph("inner")
    assert refused(sub, {"x": ramp()}).name == "QNN_GRAPH_ERROR_SUBGRAPH"


@pytest.mark.parametrize("inputs", [None, {}, [], "x"])
def test_invalid_argument_inputs(graph: htp.Graph, inputs: object) -> None:
    assert refused(graph, inputs).name == "QNN_GRAPH_ERROR_INVALID_ARGUMENT"


@pytest.mark.parametrize("outputs", [{}, [], "y"])
def test_invalid_argument_outputs(graph: htp.Graph, outputs: object) -> None:
    assert refused(graph, {"x": ramp()}, outputs).name == "QNN_GRAPH_ERROR_INVALID_ARGUMENT"


@pytest.mark.parametrize("handle", ["profile", "signal"])
def test_invalid_argument_handles(graph: htp.Graph, handle: str) -> None:
    assert refused(graph, {"x": ramp()}, **{handle: 4660}).name == "QNN_GRAPH_ERROR_INVALID_ARGUMENT"


def test_invalid_argument_notify(graph: htp.Graph) -> None:
    with pytest.raises(htp.InvalidArgument, match="function of"):
        graph.execute_async({"x": ramp()}, notify=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "inputs",
    [
        {"z": ramp()},
        {"y": ramp()},
        {99: ramp()},
        {("x",): ramp()},
        {"x": None},
        {"x": ramp().astype(np.float64)},
        {"x": ramp((1, 7))},
        {"x": ramp((8,))},
        {"x": ramp((1, 8)).tobytes()[:-1]},
        {"x": b""},
        {"x": object()},
        {"x": ramp(), "y": ramp()},
    ],
    ids=[
        "unknown name",
        "an output",
        "unknown id",
        "a tuple for a key",
        "null",
        "wrong type",
        "wrong shape",
        "wrong rank",
        "one byte short",
        "no bytes",
        "not an array",
        "one too many",
    ],
)
def test_invalid_tensor_inputs(graph: htp.Graph, inputs: dict[object, object]) -> None:
    error = refused(graph, inputs)
    assert (error.name, error.code) == ("QNN_GRAPH_ERROR_INVALID_TENSOR", 6004)


@pytest.mark.parametrize(
    "output",
    [np.zeros((1, 8), np.float16), np.zeros((1, 9), np.float32), "text", b"x" * 32],
    ids=["wrong type", "wrong shape", "text", "read-only bytes"],
)
def test_invalid_tensor_outputs(graph: htp.Graph, output: object) -> None:
    assert refused(graph, {"x": ramp()}, {"y": output}).name == "QNN_GRAPH_ERROR_INVALID_TENSOR"


def test_invalid_tensor_read_only_output(graph: htp.Graph) -> None:
    target = np.zeros((1, 8), np.float32)
    target.flags.writeable = False
    assert refused(graph, {"x": ramp()}, {"y": target}).name == "QNN_GRAPH_ERROR_INVALID_TENSOR"


def test_invalid_tensor_memory_too_short(graph: htp.Graph) -> None:
    short = graph.context.register_memory(31)
    error = refused(graph, {"x": short})
    assert error.name == "QNN_GRAPH_ERROR_INVALID_TENSOR"
    assert "31 bytes" in error.message
    assert "32 bytes" in error.message


def test_invalid_tensor_foreign_memory(graph: htp.Graph, shared_device: htp.Device) -> None:
    with shared_device.create_context() as elsewhere:
        foreign = elsewhere.register_memory(32)
        assert refused(graph, {"x": foreign}).name == "QNN_GRAPH_ERROR_INVALID_TENSOR"


def test_freed_memory(graph: htp.Graph) -> None:
    memory = graph.context.register_memory(32)
    memory.deregister()
    assert refused(graph, {"x": memory}).name == "QNN_MEM_ERROR_INVALID_HANDLE"


@pytest.mark.parametrize("moment", ["asked", "granted"])
def test_a_context_that_is_freed_while_a_call_takes_memory(
    context: htp.Context, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    graph = relu_graph(context)
    ask = ContextMemory.ask_for

    def ask_beside_a_free(memory: ContextMemory, buffer: SharedBuffer, use: str = "") -> int:
        if moment == "asked":
            context.free()
        number = ask(memory, buffer, use)
        if moment == "granted":
            context.free()
        return number

    monkeypatch.setattr(ContextMemory, "ask_for", ask_beside_a_free)
    error = refused(graph, {"x": ramp()})
    assert (error.name, error.code) == ("QNN_GRAPH_ERROR_INVALID_CONTEXT", 6039)
    assert error.message == "cannot execute: the graph's context was freed"


def test_mixed_batch_multiples(context: htp.Context) -> None:
    graph = context.create_graph("add")
    a = graph.add_tensor("a", (1, 8), "float32", kind="app_write")
    b = graph.add_tensor("b", (1, 8), "float32", kind="app_write")
    y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
    graph.add_node("ElementWiseAdd", inputs=[a, b], outputs=[y])
    graph.finalize()
    error = refused(graph, {"a": ramp((2, 8)), "b": ramp((3, 8))})
    assert error.name == "QNN_GRAPH_ERROR_INVALID_TENSOR"
    assert "batch multiple" in error.message


def test_unsupported_feature_sync_and_async_at_once(graph: htp.Graph) -> None:
    device = graph.context.device
    hold(device)
    try:
        execution = graph.execute_async({"x": ramp()})
        with pytest.raises(htp.UnsupportedFeature, match="both ways"):
            graph.execute({"x": ramp()})
    finally:
        release(device)
    execution.result(PATIENCE_S)
    graph.execute({"x": ramp()})  # one after the other is fine


def test_signal_in_use(graph: htp.Graph, shared_backend: htp.Backend) -> None:
    device = graph.context.device
    abort = shared_backend.create_signal()
    hold(device)
    try:
        first = graph.execute_async({"x": ramp()}, signal=abort)
        error = refused(graph, {"x": ramp()}, signal=abort)
        assert (error.name, error.code) == ("QNN_GRAPH_ERROR_SIGNAL_IN_USE", 6030)
    finally:
        release(device)
    first.result(PATIENCE_S)
    graph.execute_async({"x": ramp()}, signal=abort).result(PATIENCE_S)  # free again


def test_profile_in_use(graph: htp.Graph, shared_backend: htp.Backend) -> None:
    device = graph.context.device
    profile = shared_backend.create_profile()
    hold(device)
    try:
        first = graph.execute_async({"x": ramp()}, profile=profile)
        assert refused(graph, {"x": ramp()}, profile=profile).name == "QNN_GRAPH_ERROR_PROFILE_IN_USE"
    finally:
        release(device)
    first.result(PATIENCE_S)


def test_aborted(graph: htp.Graph, shared_backend: htp.Backend) -> None:
    device = graph.context.device
    abort = shared_backend.create_signal()
    hold(device)
    try:
        blocker = graph.execute_async({"x": ramp()})
        waiting = graph.execute_async({"x": ramp()}, signal=abort)
        abort.trigger()
        error = waiting.exception(PATIENCE_S)  # ends at once, although the device stands still
    finally:
        release(device)
    assert isinstance(error, htp.Aborted)
    assert error.name == "QNN_GRAPH_ERROR_ABORTED"
    assert waiting.cancelled()
    assert blocker.exception(PATIENCE_S) is None


def test_timed_out(graph: htp.Graph, shared_backend: htp.Backend) -> None:
    device = graph.context.device
    hold(device)
    try:
        blocker = graph.execute_async({"x": ramp()})
        late = graph.execute_async({"x": ramp()}, signal=shared_backend.create_signal(timeout_us=2000))
        error = late.exception(PATIENCE_S)
    finally:
        release(device)
    assert isinstance(error, htp.TimedOut)
    assert (error.name, error.code) == ("QNN_GRAPH_ERROR_TIMED_OUT", 6033)
    assert blocker.exception(PATIENCE_S) is None


def test_disabled(graph: htp.Graph, shared_device: htp.Device) -> None:
    relu_graph(graph.context, "second")
    binary = graph.context.get_binary()
    with shared_device.create_context_from_binary(binary, enable_graphs=["second"]) as restored:
        assert refused(restored.graph("g"), {"x": ramp()}).name == "QNN_GRAPH_ERROR_DISABLED"
        restored.graph("second").execute({"x": ramp()})


def test_dynamic_tensor_shape(context: htp.Context) -> None:
    graph = context.create_graph("dynamic")
    x = graph.add_tensor("x", (1, 6, 8), "float32", kind="app_write", dynamic=(False, True, False))
    y = graph.add_tensor("y", (1, 6, 8), "float32", kind="app_read", dynamic=(False, True, False))
    graph.add_node("Relu", inputs=[x], outputs=[y])
    graph.finalize()
    error = refused(graph, {"x": ramp((1, 7, 8))})
    assert (error.name, error.code) == ("QNN_GRAPH_ERROR_DYNAMIC_TENSOR_SHAPE", 6036)


def test_tensor_sparsity(context: htp.Context) -> None:
    graph = context.create_graph("sparse")
    x = graph.add_tensor("x", (4, 4), "float32", kind="app_write", sparse_elements=2)
    y = graph.add_tensor("y", (4, 4), "float32", kind="app_read")
    graph.add_node("SparseToDense", inputs=[x], outputs=[y])
    graph.finalize()
    value = htp.Sparse([[0, 1], [3, 2]], [5.0, 7.0])
    dense = graph.execute({"x": value})["y"]
    assert dense[0, 1] == 5
    assert dense[3, 2] == 7
    assert dense.sum() == 12
    error = refused(graph, {"x": htp.Sparse([[0, 0], [1, 1], [2, 2]], [1.0, 1.0, 1.0])})
    assert (error.name, error.code) == ("QNN_GRAPH_ERROR_TENSOR_SPARSITY", 6037)


def test_a6_tensor_sparsity_of_a_whole_array(context: htp.Context) -> None:
    graph = context.create_graph("sparse")
    x = graph.add_tensor("x", (4, 4), "float32", kind="app_write", sparse_elements=2)
    y = graph.add_tensor("y", (4, 4), "float32", kind="app_read")
    graph.add_node("SparseToDense", inputs=[x], outputs=[y])
    graph.finalize()
    memory = context.register_memory(64)
    for place in (np.zeros((4, 4), np.float32), memory.array(x)):
        for count in (2, 3, 1, 8, 2):  # the same array, whose content changes
            place[...] = 0
            place.reshape(-1)[:count] = 1
            if count > 2:
                assert refused(graph, {"x": place}).name == "QNN_GRAPH_ERROR_TENSOR_SPARSITY"
            else:
                assert graph.execute({"x": place})["y"].sum() == count


def test_early_termination(graph: htp.Graph) -> None:
    """No op that we have ends a graph early, so the device is told to behave as if one did."""
    fail_next(graph, st.QNN_GRAPH_ERROR_EARLY_TERMINATION)
    error = graph.execute_async({"x": ramp()}).exception(PATIENCE_S)
    assert error is not None
    assert (error.name, error.code) == ("QNN_GRAPH_ERROR_EARLY_TERMINATION", 6038)
    graph.execute({"x": ramp()})


def test_invalid_context(shared_device: htp.Device) -> None:
    context = shared_device.create_context()
    graph = relu_graph(context)
    hold(shared_device)
    try:
        pending = [graph.execute_async({"x": ramp()}) for _ in range(3)]
        context.free()
    finally:
        release(shared_device)
    for execution in pending:
        error = execution.exception(PATIENCE_S)
        assert error is not None
        assert (error.name, error.code) == ("QNN_GRAPH_ERROR_INVALID_CONTEXT", 6039)
    assert refused(graph, {"x": ramp()}).name == "QNN_GRAPH_ERROR_INVALID_CONTEXT"


def test_system_communication(backend: htp.Backend) -> None:
    device = backend.create_device()
    graph = relu_graph(device.create_context())
    hold(device)
    pending = graph.execute_async({"x": ramp()})
    os.kill(device.pid, signal.SIGKILL)
    error = pending.exception(PATIENCE_S)
    assert isinstance(error, htp.DeviceLost)
    assert (error.name, error.code) == ("QNN_COMMON_ERROR_SYSTEM_COMMUNICATION", 1007)
    assert refused(graph, {"x": ramp()}).name == "QNN_COMMON_ERROR_SYSTEM_COMMUNICATION"


def test_system_communication_fatal(backend: htp.Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    device = backend.create_device()
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    os.kill(device.pid, signal.SIGKILL)
    code = 0
    while code != 1011:  # until the restart has been tried, and failed
        try:
            device.create_context()
        except htp.DeviceLost as error:
            code, name = error.code, error.name
    assert name == "QNN_COMMON_ERROR_SYSTEM_COMMUNICATION_FATAL"
