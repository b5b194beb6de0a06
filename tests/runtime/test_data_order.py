"""An execution reads its data after those queued before it have written theirs (decision 033).

That it does so wherever the NPU lives is a test of the contract (``tests/contract/test_queue.py``).
"""

from __future__ import annotations

import itertools
import os
import signal

import numpy as np
import pytest

import openhtp as htp
from openhtp.core import status as st
from openhtp.testing import hold, release
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S, wait_until

INVALID_CONTEXT = st.QNN_GRAPH_ERROR_INVALID_CONTEXT.name


@pytest.fixture(params=["process", "thread"])
def device(request: pytest.FixtureRequest, backend: htp.Backend) -> htp.Device:
    return backend.create_device(host=request.param)


def negated(context: htp.Context, name: str, shape: tuple[int, ...] = (1, 8)) -> htp.Graph:
    """``y = -x``: never what it read."""
    graph = context.create_graph(name)
    x = graph.add_tensor("x", shape, "float32", kind="app_write")
    y = graph.add_tensor("y", shape, "float32", kind="app_read")
    graph.add_node("ElementWiseNeg", name="neg", inputs=[x], outputs=[y])
    graph.finalize()
    return graph


def test_raw_results_are_written_before_the_next_execution_reads(device: htp.Device) -> None:
    context = device.create_context(queue_depth=20)
    graph, other = negated(context, "a"), negated(context, "b")
    x, there, back = ramp(), np.zeros((1, 8), np.float32), np.zeros((1, 8), np.float32)
    hold(device)
    graph.execute_async({"x": x}, {"y": there})
    last = other.execute_async({"x": there}, {"y": back})
    release(device)
    last.result(PATIENCE_S)
    np.testing.assert_array_equal(there, -x)
    np.testing.assert_array_equal(back, x)


def test_a_part_of_an_array_is_enough(device: htp.Device) -> None:
    context = device.create_context(queue_depth=20)
    whole, part = negated(context, "whole", (2, 8)), negated(context, "part")
    x, y = ramp((2, 8)), np.zeros((2, 8), np.float32)
    hold(device)
    whole.execute_async({"x": x}, {"y": y})
    lower = part.execute_async({"x": y[1:]})
    every_second = part.execute_async({"x": y.reshape(-1)[::2].reshape(1, 8)})
    release(device)
    np.testing.assert_array_equal(lower.result(PATIENCE_S)["y"], x[1:])
    np.testing.assert_array_equal(every_second.result(PATIENCE_S)["y"], x.reshape(-1)[::2].reshape(1, 8))


def test_results_go_where_a_delayed_execution_has_read(device: htp.Device) -> None:
    """The third writes what the second, which waits for the first, has yet to read."""
    context = device.create_context(queue_depth=20)
    graph, other = negated(context, "a"), negated(context, "b")
    x, middle, end = ramp(), np.zeros((1, 8), np.float32), np.zeros((1, 8), np.float32)
    hold(device)
    graph.execute_async({"x": x}, {"y": middle})
    other.execute_async({"x": middle}, {"y": end})
    third = graph.execute_async({"x": np.full((1, 8), 7, np.float32)}, {"y": middle})
    release(device)
    third.result(PATIENCE_S)
    np.testing.assert_array_equal(end, x)
    np.testing.assert_array_equal(middle, np.full((1, 8), -7))


def test_registered_memory_of_one_context_is_raw_in_another(device: htp.Device) -> None:
    one, two = device.create_context(queue_depth=5), device.create_context(queue_depth=5)
    graph, other = negated(one, "a"), negated(two, "b")
    x = ramp()
    shared = one.register_memory(x.nbytes).array("y")
    shared[:] = 100
    hold(device)
    graph.execute_async({"x": x}, {"y": shared})
    last = other.execute_async({"x": shared})
    release(device)
    np.testing.assert_array_equal(last.result(PATIENCE_S)["y"], x)


def test_graphs_that_may_run_side_by_side_keep_the_order(backend: htp.Backend) -> None:
    device = backend.create_device(parallel_graphs=True)
    context = device.create_context(queue_depth=40)
    parts = [negated(context, f"part {n}") for n in range(4)]
    arrays = [context.register_memory(32).array("x") for _ in range(5)]
    for round_number in range(5):
        arrays[0][:] = ramp() + round_number
        last = None
        for n, part in enumerate(parts):
            last = part.execute_async({"x": arrays[n]}, {"y": arrays[n + 1]})
        assert last is not None
        np.testing.assert_array_equal(last.result(PATIENCE_S)["y"], ramp() + round_number)


def test_others_are_not_held_up(device: htp.Device) -> None:
    context = device.create_context(queue_depth=20)
    graph, other = negated(context, "a"), negated(context, "b")
    order: list[int] = []
    x, middle = ramp(), np.zeros((1, 8), np.float32)
    hold(device)
    graph.execute_async({"x": x}, {"y": middle}, notify=lambda n, _: order.append(n), notify_param=0)
    last = other.execute_async({"x": middle}, notify=lambda n, _: order.append(n), notify_param=1)
    free = graph.execute_async({"x": x}, notify=lambda n, _: order.append(n), notify_param=2)
    release(device)
    free.result(PATIENCE_S)
    np.testing.assert_array_equal(last.result(PATIENCE_S)["y"], x)
    wait_until(lambda: len(order) == 3)
    assert order == [0, 2, 1]


def test_a_delayed_execution_can_be_cancelled(device: htp.Device) -> None:
    context = device.create_context(queue_depth=20)
    graph, other = negated(context, "a"), negated(context, "b")
    x, middle = ramp(), np.zeros((1, 8), np.float32)
    hold(device)
    first = graph.execute_async({"x": x}, {"y": middle})
    second = other.execute_async({"x": middle})
    third = other.execute_async({"x": middle})
    assert second.cancel()
    assert isinstance(second.exception(PATIENCE_S), htp.Aborted)  # while the device stands still
    assert context.pending == 2
    release(device)
    assert first.exception(PATIENCE_S) is None
    np.testing.assert_array_equal(third.result(PATIENCE_S)["y"], x)
    assert context.pending == 0


def test_a_failed_execution_leaves_what_lay_there(device: htp.Device) -> None:
    context = device.create_context(queue_depth=20)
    graph, other = negated(context, "a"), negated(context, "b")
    middle = np.full((1, 8), 5, np.float32)
    hold(device)
    first = graph.execute_async({"x": ramp()}, {"y": middle})
    waiting = graph.execute_async({"x": ramp()}, {"y": middle})
    last = other.execute_async({"x": middle})
    first.cancel()
    waiting.cancel()
    release(device)
    last.result(PATIENCE_S)
    if isinstance(first.exception(PATIENCE_S), htp.Aborted):
        np.testing.assert_array_equal(last.result()["y"], np.full((1, 8), -5))


def test_freeing_its_context_ends_it(device: htp.Device) -> None:
    one, two = device.create_context(queue_depth=5), device.create_context(queue_depth=5)
    graph, other = negated(one, "a"), negated(two, "b")
    middle = np.zeros((1, 8), np.float32)
    hold(device)
    graph.execute_async({"x": ramp()}, {"y": middle})
    last = other.execute_async({"x": middle})
    two.free()
    error = last.exception(PATIENCE_S)
    assert isinstance(error, htp.QnnError)
    assert error.name == INVALID_CONTEXT
    release(device)


def test_a_lost_device_ends_it(backend: htp.Backend) -> None:
    device = backend.create_device()
    context = device.create_context(queue_depth=5)
    graph, other = negated(context, "a"), negated(context, "b")
    middle = np.zeros((1, 8), np.float32)
    hold(device)
    graph.execute_async({"x": ramp()}, {"y": middle})
    last = other.execute_async({"x": middle})
    os.kill(device.pid, signal.SIGKILL)
    assert isinstance(last.exception(PATIENCE_S), htp.DeviceLost)


def test_a_long_chain_from_many_calls(device: htp.Device) -> None:
    context = device.create_context(queue_depth=300)
    graph = negated(context, "a")
    arrays = [ramp(), *(np.zeros((1, 8), np.float32) for _ in range(250))]
    for source, target in itertools.pairwise(arrays):
        last = graph.execute_async({"x": source}, {"y": target})
    last.result(PATIENCE_S)
    np.testing.assert_array_equal(arrays[-1], ramp())


def test_arrays_of_its_own_delay_nothing(device: htp.Device) -> None:
    context = device.create_context(queue_depth=20)
    graph = relu_graph(context)
    executions = [graph.execute_async({"x": ramp() + n}) for n in range(15)]
    for n, execution in enumerate(executions):
        np.testing.assert_array_equal(execution.result(PATIENCE_S)["y"], np.maximum(ramp() + n, 0))
