"""What execute and execute_async take and give."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import numpy as np
import pytest

import openhtp as htp
from openhtp.testing import hold, release
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S


def test_outputs_by_name(graph: htp.Graph) -> None:
    out = graph.execute({"x": ramp()})
    assert list(out) == ["y"]
    np.testing.assert_array_equal(out["y"], np.maximum(ramp(), 0))


@pytest.mark.parametrize("key", ["name", "id", "tensor"])
def test_tensors_are_found_by_name_id_or_object(graph: htp.Graph, key: str) -> None:
    x, y = graph.tensors["x"], graph.tensors["y"]
    keys = {"name": ("x", "y"), "id": (x.id, y.id), "tensor": (x, y)}[key]
    target = np.zeros((1, 8), np.float32)
    out = graph.execute({keys[0]: ramp()}, {keys[1]: target})
    assert out["y"] is target
    np.testing.assert_array_equal(target, np.maximum(ramp(), 0))


def test_bytes_are_taken_as_a_raw_buffer(graph: htp.Graph) -> None:
    out = graph.execute({"x": ramp().tobytes()})
    np.testing.assert_array_equal(out["y"], np.maximum(ramp(), 0))


def test_non_contiguous_arrays_are_copied_right(graph: htp.Graph) -> None:
    wide = np.zeros((1, 16), np.float32)
    wide[:, ::2] = ramp()
    np.testing.assert_array_equal(graph.execute({"x": wide[:, ::2]})["y"], np.maximum(ramp(), 0))


def test_batch_multiple_runs_every_piece(graph: htp.Graph) -> None:
    x = ramp((5, 8))
    np.testing.assert_array_equal(graph.execute({"x": x})["y"], np.maximum(x, 0))


def test_batch_multiple_in_registered_memory(graph: htp.Graph) -> None:
    context = graph.context
    source, target = context.register_memory(3 * 32), context.register_memory(3 * 32)
    x = source.array("x", batch=3)
    x[:] = ramp((3, 8))
    out = graph.execute({"x": x}, {"y": target.array("y", batch=3)})
    np.testing.assert_array_equal(out["y"], np.maximum(ramp((3, 8)), 0))


def test_dynamic_dimensions(context: htp.Context) -> None:
    graph = context.create_graph("dynamic")
    x = graph.add_tensor("x", (1, 6, 8), "float32", kind="app_write", dynamic=(False, True, False))
    y = graph.add_tensor("y", (1, 6, 8), "float32", kind="app_read", dynamic=(False, True, False))
    graph.add_node("Relu", inputs=[x], outputs=[y])
    graph.finalize()
    for rows in (6, 2, 5):
        out = graph.execute({"x": ramp((1, rows, 8))})["y"]
        assert out.shape == (1, rows, 8)
        np.testing.assert_array_equal(out, np.maximum(ramp((1, rows, 8)), 0))


def optional_graph(context: htp.Context) -> htp.Graph:
    graph = context.create_graph("optional")
    a = graph.add_tensor("a", (1, 8), "float32", kind="app_write")
    b = graph.add_tensor("b", (1, 8), "float32", kind="optional_app_write")
    total = graph.add_tensor("total", (1, 8), "float32", kind="app_read")
    extra = graph.add_tensor("extra", (1, 8), "float32", kind="optional_app_read")
    graph.add_node("ElementWiseAdd", inputs=[a, b], outputs=[total])
    graph.add_node("Relu", inputs=[a], outputs=[extra])
    graph.finalize()
    return graph


def test_optional_tensors_may_be_left_out(context: htp.Context) -> None:
    graph = optional_graph(context)
    both = graph.execute({"a": ramp(), "b": ramp()})
    np.testing.assert_array_equal(both["total"], 2 * ramp())
    np.testing.assert_array_equal(both["extra"], np.maximum(ramp(), 0))
    target = np.empty((1, 8), np.float32)
    without = graph.execute({"a": ramp()}, {"total": target})
    assert list(without) == ["total"]
    np.testing.assert_array_equal(target, ramp())  # a left-out input reads as zero


def test_registered_memory_is_used_in_place(graph: htp.Graph) -> None:
    context = graph.context
    shared = context.register_memory(256)
    x, y = shared.array("x"), shared.array("y")
    x[:] = ramp()
    out = graph.execute({"x": x}, {"y": y})
    assert out["y"] is y
    np.testing.assert_array_equal(y, np.maximum(ramp(), 0))
    x += 1
    graph.execute({"x": shared}, {"y": shared})  # the Mem itself stands for the tensors it carries
    np.testing.assert_array_equal(y, np.maximum(ramp() + 1, 0))


def test_queued_executions_with_one_output_overwrite_it_in_turn(context: htp.Context) -> None:
    """Memory of its own for each is the client's concern: the last one stays, and nothing fails."""
    graph = relu_graph(context)
    memory = context.register_memory(32)
    y = memory.array("y")
    hold(context.device)
    try:
        executions = [graph.execute_async({"x": ramp() + n}, {"y": y}) for n in range(3)]
    finally:
        release(context.device)
    assert [execution.exception(PATIENCE_S) for execution in executions] == [None] * 3
    np.testing.assert_array_equal(y, np.maximum(ramp() + 2, 0))


def test_devices_have_queues_of_their_own(backend: htp.Backend) -> None:
    held, free = (backend.create_device(soc=soc) for soc in ("SM8650", "SM8550"))
    waiting, going = (relu_graph(device.create_context()) for device in (held, free))
    hold(held)
    first = waiting.execute_async({"x": ramp()})
    going.execute_async({"x": ramp()}).result(PATIENCE_S)
    assert not first.done()
    release(held)
    first.result(PATIENCE_S)


def test_slices_of_registered_memory_are_recognised(context: htp.Context) -> None:
    graph = relu_graph(context)
    memory = context.register_memory(1024)
    frames = memory.array("frames", shape=(8, 1, 8), dtype=np.float32)
    frames[:] = ramp()
    assert context.opened.memory.place_of(frames[3]) is not None
    np.testing.assert_array_equal(graph.execute({"x": frames[3]})["y"], np.maximum(ramp(), 0))


def test_notify_runs_once_on_a_thread_of_the_backend(graph: htp.Graph) -> None:
    seen: list[tuple[object, int, str]] = []
    called = threading.Event()

    def notify(param: object, status: int) -> None:
        seen.append((param, status, threading.current_thread().name))
        called.set()

    execution = graph.execute_async({"x": ramp()}, notify=notify, notify_param=7)
    execution.result(PATIENCE_S)
    assert called.wait(PATIENCE_S)
    graph.execute({"x": ramp()})
    assert seen == [(7, 0, "openhtp-notify")]


def test_execution_is_a_future(graph: htp.Graph) -> None:
    seen = []
    done = threading.Event()
    hold(graph.context.device)
    execution = graph.execute_async({"x": ramp()})
    assert not execution.done()
    with pytest.raises(TimeoutError, match="goes on"):
        execution.result(timeout=0.01)
    execution.add_done_callback(lambda e: (seen.append(e), done.set()))
    release(graph.context.device)
    np.testing.assert_array_equal(execution.result(PATIENCE_S)["y"], np.maximum(ramp(), 0))
    assert execution.done()
    assert execution.exception() is None
    assert done.wait(PATIENCE_S)
    assert seen == [execution]
    again = threading.Event()
    execution.add_done_callback(lambda _: again.set())
    assert again.wait(PATIENCE_S)
    assert execution.cancel() is False


def test_futures_of_the_standard_library(graph: htp.Graph) -> None:
    hold(graph.context.device)
    futures = [graph.execute_async({"x": ramp() + n}).as_future() for n in range(3)]
    assert not any(future.done() for future in futures)
    assert futures[1].cancel()
    release(graph.context.device)
    for future in concurrent.futures.as_completed(futures, PATIENCE_S):
        if future is not futures[1]:
            np.testing.assert_array_equal(future.result()["y"], np.maximum(ramp() + futures.index(future), 0))
    assert futures[1].cancelled()
    assert futures[0].done()


def test_a_future_of_the_standard_library_has_the_error(graph: htp.Graph) -> None:
    hold(graph.context.device)
    execution = graph.execute_async({"x": ramp()})
    future = execution.as_future()
    assert execution.cancel()
    release(graph.context.device)
    assert isinstance(future.exception(PATIENCE_S), htp.Aborted)
    graph.execute({"x": ramp()})
    over = graph.execute_async({"x": ramp()})
    over.result(PATIENCE_S)
    np.testing.assert_array_equal(over.as_future().result(PATIENCE_S)["y"], np.maximum(ramp(), 0))


def test_await(graph: htp.Graph) -> None:
    async def main() -> list[float]:
        executions = [graph.execute_async({"x": ramp() + n}) for n in range(10)]
        return [float((await execution)["y"].sum()) for execution in executions]

    assert asyncio.run(main()) == [float(np.maximum(ramp() + n, 0).sum()) for n in range(10)]


def test_await_raises_the_error(graph: htp.Graph) -> None:
    async def main() -> None:
        hold(graph.context.device)
        execution = graph.execute_async({"x": ramp()})
        execution.cancel()
        release(graph.context.device)
        await execution

    with pytest.raises(htp.Aborted):
        asyncio.run(main())


def test_many_threads_share_a_graph(graph: htp.Graph) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(20):
            value = number * 100 + turn
            if graph.execute({"x": np.full((1, 8), value, np.float32)})["y"][0, 0] != value:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_inprocess_transport_computes_the_same(backend: htp.Backend) -> None:
    device = backend.create_device(transport="inprocess")
    graph = relu_graph(device.create_context())
    np.testing.assert_array_equal(graph.execute({"x": ramp((4, 8))})["y"], np.maximum(ramp((4, 8)), 0))
