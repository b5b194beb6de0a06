"""Pre-emption for real: a more urgent execution takes over between steps; results stay the same."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import openhtp as htp
from openhtp.testing import hold, release, virtual_device
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S

STEP_NS = 1_000_000
TWO_CORES = "SA8775P"


def long_graph(context: htp.Context, name: str = "long", **options: object) -> htp.Graph:
    """A chain of matrix products that is cut into several steps."""
    rng = np.random.default_rng(3)
    graph = context.create_graph(name, **options)  # type: ignore[arg-type]
    value = graph.add_tensor("x", (512, 512), "float32", kind="app_write")
    for number in range(12):
        weight = graph.add_tensor(
            f"w{number}", (512, 512), "float32", data=(rng.normal(size=(512, 512)) / 22).astype(np.float32)
        )
        last = number == 11
        out = graph.add_tensor(
            "y" if last else f"t{number}", (512, 512), "float32", kind="app_read" if last else "native"
        )
        graph.add_node("MatMul", inputs=[value, weight], outputs=[out])
        value = out
    graph.finalize()
    assert graph.steps > 3
    return graph


@pytest.fixture(scope="module")
def feed() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(4).normal(size=(512, 512)).astype(np.float32)}


@pytest.fixture(params=["virtual", "wall"])
def device(request: pytest.FixtureRequest, backend: htp.Backend) -> Iterator[htp.Device]:
    return virtual_device(backend, step_ns=STEP_NS) if request.param == "virtual" else backend.create_device()


def test_a_running_graph_is_preempted_and_its_results_are_the_same(
    device: htp.Device, backend: htp.Backend, feed: dict[str, np.ndarray]
) -> None:
    context = device.create_context()
    low = long_graph(context, priority="low")
    high = relu_graph(context, "high", priority="high")
    undisturbed = low.execute(feed)["y"]
    for _ in range(50):  # until the high one came while the low one ran, which is nearly always at once
        profile = backend.create_profile()
        hold(device)
        disturbed = low.execute_async(feed, profile=profile)
        urgent = high.execute_async({"x": ramp()})
        release(device)
        assert urgent.exception(PATIENCE_S) is None
        np.testing.assert_array_equal(disturbed.result(PATIENCE_S)["y"], undisturbed)
        assert disturbed.record is not None
        assert urgent.record is not None
        assert urgent.record.finished_ns <= disturbed.record.finished_ns
        if disturbed.record.yields:
            break
    assert disturbed.record.yields == 1
    assert profile.event(3009).value == 1  # type: ignore[union-attr]
    waited = profile.event(3007)
    assert waited is not None
    assert waited.value == disturbed.record.paused_ns // 1000


def test_equal_priority_does_not_preempt(device: htp.Device, feed: dict[str, np.ndarray]) -> None:
    context = device.create_context()
    first, second = long_graph(context), relu_graph(context, "second")
    running, waiting = first.execute_async(feed), second.execute_async({"x": ramp()})
    waiting.result(PATIENCE_S)
    running.result(PATIENCE_S)
    assert running.record is not None
    assert waiting.record is not None
    assert running.record.yields == 0
    assert waiting.record.started_ns >= running.record.finished_ns


def test_preemption_happens_at_the_end_of_the_step(backend: htp.Backend, feed: dict[str, np.ndarray]) -> None:
    device = virtual_device(backend, step_ns=STEP_NS)
    context = device.create_context()
    low = long_graph(context, priority="low")
    high = relu_graph(context, "high", priority="high")
    link = context.opened.link
    start = link.now()
    running = low.execute_async(feed)
    link.run_loop(start + 2 * STEP_NS)  # type: ignore[attr-defined]
    urgent = high.execute_async({"x": ramp()})
    urgent.result()
    running.result()
    assert urgent.record is not None
    assert running.record is not None
    # Two steps had ended; the third was under way and ended first.
    assert urgent.record.started_ns - start == 3 * STEP_NS
    assert running.record.paused_ns == STEP_NS
    assert running.record.finished_ns - start == (low.steps + 1) * STEP_NS


def test_abort_of_a_running_execution_takes_effect_at_the_next_step(
    backend: htp.Backend, feed: dict[str, np.ndarray]
) -> None:
    device = virtual_device(backend, step_ns=STEP_NS)
    low = long_graph(device.create_context())
    link = low.context.opened.link
    abort = backend.create_signal()
    running = low.execute_async(feed, signal=abort)
    link.run_loop(link.now() + STEP_NS)  # type: ignore[attr-defined]
    abort.trigger()
    assert isinstance(running.exception(), htp.Aborted)
    assert running.record is not None
    assert running.record.finished_ns - running.record.started_ns == 2 * STEP_NS


def test_fair_policy_reaches_the_device(backend: htp.Backend) -> None:
    graph = relu_graph(backend.create_device(policy="fair").create_context())
    np.testing.assert_array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))


def test_windows_platform_ignores_priorities(backend: htp.Backend, feed: dict[str, np.ndarray]) -> None:
    device = backend.create_device(platform="windows")
    context = device.create_context()
    low = long_graph(context, priority="low")
    high = relu_graph(context, "high", priority="high")
    running, urgent = low.execute_async(feed), high.execute_async({"x": ramp()})
    urgent.result(PATIENCE_S)
    assert running.result(PATIENCE_S)
    assert running.record is not None
    assert running.record.yields == 0


def test_parallel_graphs_share_the_device(backend: htp.Backend, feed: dict[str, np.ndarray]) -> None:
    """Two graphs of one priority, each with half of the units, make progress together."""
    device = backend.create_device(parallel_graphs=True)
    context = device.create_context()
    a = long_graph(context, "a", vtcm_mb=4, hvx_threads=2)
    b = long_graph(context, "b", vtcm_mb=4, hvx_threads=2)
    hold(device)  # until both are there
    first, second = a.execute_async(feed), b.execute_async(feed)
    release(device)
    np.testing.assert_array_equal(first.result(PATIENCE_S)["y"], second.result(PATIENCE_S)["y"])
    assert first.record is not None
    assert second.record is not None
    assert second.record.started_ns < first.record.finished_ns


def test_graphs_of_one_priority_take_turns_without_the_switch(
    backend: htp.Backend, feed: dict[str, np.ndarray]
) -> None:
    device = backend.create_device()
    context = device.create_context()
    a, b = (long_graph(context, name, vtcm_mb=4, hvx_threads=2) for name in "ab")
    hold(device)
    first, second = a.execute_async(feed), b.execute_async(feed)
    release(device)
    second.result(PATIENCE_S)
    assert first.record is not None
    assert second.record is not None
    assert second.record.started_ns >= first.record.finished_ns


def test_graphs_on_two_cores_do_not_wait_for_each_other(backend: htp.Backend, feed: dict[str, np.ndarray]) -> None:
    device = backend.create_device(soc=TWO_CORES)
    context = device.create_context()
    long, short = long_graph(context), context.create_graph("short", core=1)
    x = short.add_tensor("x", (1, 8), "float32", kind="app_write")
    y = short.add_tensor("y", (1, 8), "float32", kind="app_read")
    short.add_node("Relu", inputs=[x], outputs=[y])
    short.finalize()
    hold(device)
    running, beside = long.execute_async(feed), short.execute_async({"x": ramp()})
    release(device)
    beside.result(PATIENCE_S)
    running.result(PATIENCE_S)
    assert running.record is not None
    assert beside.record is not None
    assert beside.record.finished_ns < running.record.finished_ns
    assert running.record.yields == 0
    with pytest.raises(htp.InvalidArgument, match="has 2, counted from 0"):
        context.create_graph("nowhere", core=2)
