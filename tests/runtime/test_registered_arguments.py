"""Arrays on registered memory are checked as plain ones are, once per array and port."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest

import openhtp as htp
from openhtp.testing import hold, release
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S


def fixed_graph(context: htp.Context) -> htp.Graph:
    """``y = relu(x)`` on 8-bit fixed point."""
    graph = context.create_graph("fixed")
    encoding = htp.ScaleOffset(0.5, -128)
    x = graph.add_tensor("x", (1, 8), "ufixed8", quant=encoding, kind="app_write")
    y = graph.add_tensor("y", (1, 8), "ufixed8", quant=encoding, kind="app_read")
    graph.add_node("Relu", inputs=[x], outputs=[y])
    graph.finalize()
    return graph


def refused(graph: htp.Graph, inputs: object, outputs: object, match: str) -> None:
    with pytest.raises(htp.InvalidArgument, match=match) as caught:
        graph.execute(inputs, outputs)  # type: ignore[arg-type]
    assert caught.value.name == "QNN_GRAPH_ERROR_INVALID_TENSOR"


def test_a_view_of_another_type_does_not_become_an_output(graph: htp.Graph) -> None:
    """Eight bytes as eight floats: the 24 bytes behind them would be overwritten."""
    memory = graph.context.register_memory(256)
    memory.bytes[:] = 77
    small = memory.array("small", shape=(1, 8), dtype=np.uint8)
    refused(graph, {"x": ramp()}, {"y": small}, "output 'y' is uint8; expected float32")
    assert (memory.bytes == 77).all()


def test_floats_do_not_become_fixed_point(context: htp.Context) -> None:
    graph = fixed_graph(context)
    memory = context.register_memory(256)
    floats = memory.array("floats", shape=(1, 8), dtype=np.float32)
    refused(graph, {"x": floats}, None, "input 'x' is float32; expected uint8")


@pytest.mark.parametrize("shape", [(8,), (1, 1, 8), (), (8, 1), (1, 7), (2, 4), (0, 8)], ids=str)
@pytest.mark.parametrize("side", ["input", "output"])
def test_shapes_that_do_not_fit(graph: htp.Graph, shape: tuple[int, ...], side: str) -> None:
    memory = graph.context.register_memory(256)
    odd = memory.bytes[: 4 * int(np.prod(shape))].view(np.float32).reshape(shape)
    if side == "input":
        refused(graph, {"x": odd}, None, "'x' has shape")
    else:
        refused(graph, {"x": ramp()}, {"y": odd}, "'y' has shape")


def test_slices_are_checked_too(graph: htp.Graph) -> None:
    memory = graph.context.register_memory(256)
    rows = memory.array("rows", shape=(4, 8), dtype=np.float32)
    refused(graph, {"x": rows[0]}, None, "'x' has shape")
    refused(graph, {"x": rows[:1].view(np.uint32)}, None, "input 'x' is uint32")


def test_other_byte_order_is_refused(graph: htp.Graph) -> None:
    memory = graph.context.register_memory(256)
    refused(graph, {"x": memory.array("x", shape=(1, 8), dtype=">f4")}, None, "input 'x' is >f4")


def test_read_only_outputs_are_refused_also_after_they_were_used(graph: htp.Graph) -> None:
    memory = graph.context.register_memory(256)
    x, y = memory.array("x"), memory.array("y")
    x[:] = ramp()
    graph.execute({"x": x}, {"y": y})
    before = y.copy()
    y.flags.writeable = False
    x += 1
    refused(graph, {"x": x}, {"y": y}, "output array for 'y' is read-only")
    np.testing.assert_array_equal(y, before)
    y.flags.writeable = True
    x.flags.writeable = False  # an input may be
    np.testing.assert_array_equal(graph.execute({"x": x}, {"y": y})["y"], np.maximum(ramp() + 1, 0))


def test_an_array_reshaped_in_place_still_means_the_same_bytes(graph: htp.Graph) -> None:
    memory = graph.context.register_memory(256)
    memory.bytes[:] = 77
    x, y = memory.array("x"), memory.array("y")
    x[:] = ramp()
    graph.execute({"x": x}, {"y": y})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy advises against it, and may
        y.shape = (8,)
    x += 1
    graph.execute({"x": x}, {"y": y})
    np.testing.assert_array_equal(y, np.maximum(ramp() + 1, 0).reshape(8))
    assert (memory.bytes[96:] == 77).all()


def test_a_batch_must_agree(graph: htp.Graph) -> None:
    memory = graph.context.register_memory(1024)
    three = memory.array("three", shape=(3, 8), dtype=np.float32)
    two = memory.array("two", shape=(2, 8), dtype=np.float32)
    refused(graph, {"x": three}, {"y": two}, "batch multiple")


def test_strided_views_of_registered_memory_are_copied_as_raw_ones(graph: htp.Graph) -> None:
    memory = graph.context.register_memory(256)
    wide = memory.array("wide", shape=(1, 16), dtype=np.float32)
    wide[:, ::2] = ramp()
    np.testing.assert_array_equal(graph.execute({"x": wide[:, ::2]})["y"], np.maximum(ramp(), 0))
    wide[:] = 5
    graph.execute({"x": ramp()}, {"y": wide[:, ::2]})
    np.testing.assert_array_equal(wide[:, ::2], np.maximum(ramp(), 0))
    assert (wide[:, 1::2] == 5).all()


def test_a_verdict_is_kept_per_array(graph: htp.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    from openhtp.runtime.calls import callee

    memory = graph.context.register_memory(256)
    x, y = memory.array("x"), memory.array("y")
    graph.execute({"x": x}, {"y": y})
    monkeypatch.setattr(callee, "check_arguments", lambda *_: pytest.fail("checked again"))
    graph.execute({"x": x}, {"y": y})


def test_the_outputs_of_each_call_are_the_callers_own(graph: htp.Graph) -> None:
    x, y = (graph.context.register_memory(32).array(name) for name in ("x", "y"))
    x[:] = ramp()
    runs = [graph.execute_async({"x": x}, {"y": y}) for _ in range(2)]
    first, second = (run.result(PATIENCE_S) for run in runs)
    first.clear()
    assert list(second) == ["y"]
    assert second["y"] is y
    assert graph.execute({"x": x}, {"y": y})["y"] is y


def test_memory_placed_anew_is_read_where_it_lies_now(graph: htp.Graph) -> None:
    memory = graph.context.register_memory(2048)
    first = memory.array("x", offset=0)
    target = graph.context.register_memory(32)
    first[:] = 1
    assert graph.execute({"x": memory}, {"y": target})["y"][0, 0] == 1
    second = memory.array("x", offset=1024)
    second[:] = 2
    assert graph.execute({"x": memory}, {"y": target})["y"][0, 0] == 2


def test_memory_in_use_is_not_deregistered(shared_device: htp.Device, graph: htp.Graph) -> None:
    context = graph.context
    used, other = context.register_memory(256), context.register_memory(256)
    x, y = used.array("x"), used.array("y")
    x[:] = ramp()
    hold(shared_device)
    try:
        execution = graph.execute_async({"x": x}, {"y": y})
        with pytest.raises(htp.WrongState, match="in use by 1 execution") as caught:
            used.deregister()
        assert caught.value.name == "QNN_COMMON_ERROR_OPERATION_NOT_PERMITTED"
        other.deregister()
        queued = graph.execute_async({"x": x}, {"y": y})  # refused is as if it had not been asked
    finally:
        release(shared_device)
    np.testing.assert_array_equal(execution.result(PATIENCE_S)["y"], np.maximum(ramp(), 0))
    queued.result(PATIENCE_S)
    used.deregister()
    with pytest.raises(htp.InvalidHandle):
        graph.execute({"x": used})


def test_memory_of_a_synchronous_execution_is_in_use(shared_device: htp.Device, graph: htp.Graph) -> None:
    memory = graph.context.register_memory(256)
    x, y = memory.array("x"), memory.array("y")
    hold(shared_device)
    thread = threading.Thread(target=graph.execute, args=({"x": x}, {"y": y}))
    try:
        thread.start()
        while not graph.context.pending:
            threading.Event().wait(0.001)
        with pytest.raises(htp.WrongState, match="in use"):
            memory.deregister()
    finally:
        release(shared_device)
        thread.join(PATIENCE_S)
    memory.deregister()


def test_failed_and_cancelled_executions_let_go(shared_device: htp.Device, context: htp.Context) -> None:
    graph = relu_graph(context)
    memory = context.register_memory(256)
    x, y = memory.array("x"), memory.array("y")
    hold(shared_device)
    try:
        execution = graph.execute_async({"x": x}, {"y": y})
        execution.cancel()
    finally:
        release(shared_device)
    execution.exception(PATIENCE_S)
    memory.deregister()
