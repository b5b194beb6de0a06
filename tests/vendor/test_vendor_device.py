"""The vendor's library as a device: the same program as on the emulator, with our queue around it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.waiting import PATIENCE_S

import openhtp as htp
from openhtp.core import status as st
from openhtp.runtime.objects.lifecycle import State
from openhtp.testing import hold, release
from openhtp.vendor.library import find_library

SHAPE = (1, 8, 8, 32)


@pytest.fixture(scope="module")
def vendor_backend() -> Iterator[htp.Backend]:
    if find_library() is None:
        pytest.skip("the onnxruntime-qnn package is not installed")
    with htp.Backend(library="vendor") as backend:
        yield backend


@pytest.fixture(scope="module")
def device(vendor_backend: htp.Backend) -> htp.Device:
    return vendor_backend.create_device()


@pytest.fixture
def vendor_context(device: htp.Device) -> Iterator[htp.Context]:
    with device.create_context(queue_depth=20) as context:
        yield context


def add_graph(context: htp.Context, name: str = "g", **options: Any) -> htp.Graph:
    """A finalized graph ``o = a + b`` on 8 bits."""
    graph = context.create_graph(name, **options)
    a = graph.add_tensor("a", SHAPE, "ufixed8", quant=htp.ScaleOffset(0.02, -128), kind="app_write")
    b = graph.add_tensor("b", SHAPE, "ufixed8", quant=htp.ScaleOffset(0.03, -100), kind="app_write")
    o = graph.add_tensor("o", SHAPE, "ufixed8", quant=htp.ScaleOffset(0.05, -120), kind="app_read")
    graph.add_node("ElementWiseAdd", name="add0", inputs=[a, b], outputs=[o])
    graph.finalize()
    return graph


def conv_relu_graph(context: htp.Context, size: int = 8, channels: int = 16) -> htp.Graph:
    """A finalized graph whose Relu our compiler fuses into the convolution before it."""
    rng = np.random.default_rng(5)
    graph = context.create_graph("conv")
    shape = (1, size, size, channels)
    x = graph.add_tensor("x", shape, "ufixed8", quant=htp.ScaleOffset(0.02, -128), kind="app_write")
    weights = rng.integers(-100, 100, (3, 3, channels, channels)).astype(np.int8)
    w = graph.add_tensor("w", weights.shape, "sfixed8", quant=htp.ScaleOffset(0.01, 0), data=weights)
    c = graph.add_tensor("c", shape, "ufixed8", quant=htp.ScaleOffset(0.4, -128))
    y = graph.add_tensor("y", shape, "ufixed8", quant=htp.ScaleOffset(0.2, 0), kind="app_read")
    params = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}
    graph.add_node("Conv2d", name="conv0", inputs=[x, w], outputs=[c], params=params)
    graph.add_node("Relu", name="relu0", inputs=[c], outputs=[y])
    graph.finalize()
    return graph


def numbers(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def steps_apart(one: np.ndarray, other: np.ndarray) -> int:
    return int(np.abs(one.astype(int) - other.astype(int)).max())


@pytest.mark.vendor
@pytest.mark.parametrize("build", [add_graph, conv_relu_graph])
def test_the_same_program_runs_on_both_devices(
    vendor_context: htp.Context, context: htp.Context, build: Any
) -> None:
    ours, theirs = build(context), build(vendor_context)
    inputs = {tensor.name: numbers(n, tensor.shape) for n, tensor in enumerate(ours.inputs)}
    expected, got = ours.execute(inputs), theirs.execute(inputs)
    assert list(got) == list(expected)
    for name in expected:
        assert len(np.unique(got[name])) > 20
        assert steps_apart(got[name], expected[name]) <= 1


@pytest.mark.vendor
def test_registered_memory_and_batches(vendor_context: htp.Context) -> None:
    graph = add_graph(vendor_context)
    a, b = numbers(1, (3, *SHAPE[1:])), numbers(2, (3, *SHAPE[1:]))
    memory = vendor_context.register_memory(3 * a.nbytes + 256)
    places = {name: memory.array(name, batch=3) for name in ("a", "b", "o")}
    places["a"][:], places["b"][:] = a, b
    graph.execute({"a": places["a"], "b": places["b"]}, {"o": places["o"]})
    np.testing.assert_array_equal(places["o"], graph.execute({"a": a, "b": b})["o"])
    single = graph.execute({"a": a[1:2], "b": b[1:2]})["o"]
    np.testing.assert_array_equal(places["o"][1:2], single)
    memory.deregister()
    np.testing.assert_array_equal(graph.execute({"a": a[1:2], "b": b[1:2]})["o"], single)


@pytest.mark.vendor
def test_await_and_profile(vendor_backend: htp.Backend, vendor_context: htp.Context) -> None:
    graph = add_graph(vendor_context)
    inputs = {"a": numbers(1), "b": numbers(2)}
    profile = vendor_backend.create_profile("detailed")

    async def run() -> Any:
        return await graph.execute_async(inputs, profile=profile)

    np.testing.assert_array_equal(asyncio.run(run())["o"], graph.execute(inputs)["o"])
    steps = profile.event(407)
    assert steps is not None
    assert len(steps.events) == 1
    assert 0 < steps.value <= profile.event(400).value


@pytest.mark.vendor
def test_binaries_go_between_devices(
    device: htp.Device, shared_device: htp.Device, vendor_context: htp.Context, context: htp.Context
) -> None:
    """A binary holds the program; a device that loads it compiles it for itself."""
    data = {"x": numbers(3, (1, 8, 8, 16))}
    results = []
    for made_by in (conv_relu_graph(vendor_context), conv_relu_graph(context)):
        blob = made_by.context.get_binary()
        for target in (device, shared_device):
            with target.create_context_from_binary(blob, queue_depth=50) as restored:
                results.append(restored.graph("conv").execute(data)["y"])
    assert all(steps_apart(result, results[0]) <= 1 for result in results)


@pytest.mark.vendor
def test_a_waiting_execution_is_aborted_while_another_runs(
    vendor_backend: htp.Backend, vendor_context: htp.Context
) -> None:
    """The library itself cannot be interrupted; the queue hears the signal all the same."""
    graph = conv_relu_graph(vendor_context, size=96, channels=64)
    x = numbers(1, (1, 96, 96, 64))
    running, abort = graph.execute_async({"x": x}), vendor_backend.create_signal()
    waiting = graph.execute_async({"x": x}, signal=abort)
    late = graph.execute_async({"x": x}, signal=vendor_backend.create_signal(timeout_us=1000))
    abort.trigger()
    with pytest.raises(htp.Aborted):
        waiting.result(PATIENCE_S)
    with pytest.raises(htp.TimedOut):
        late.result(PATIENCE_S)
    assert not running.done()
    assert running.result(PATIENCE_S)["y"].any()


@pytest.mark.vendor
def test_freeing_a_context_ends_what_waits_in_it(device: htp.Device) -> None:
    context = device.create_context()
    graph = conv_relu_graph(context, size=96, channels=64)
    executions = [graph.execute_async({"x": numbers(1, (1, 96, 96, 64))}) for _ in range(3)]
    context.free()
    codes = {execution.exception(PATIENCE_S).code for execution in executions}
    assert codes == {st.QNN_GRAPH_ERROR_INVALID_CONTEXT.code}
    with device.create_context() as after:
        assert add_graph(after).execute({"a": numbers(1), "b": numbers(2)})["o"].any()


@pytest.mark.vendor
def test_a_killed_process_is_a_subsystem_restart(vendor_backend: htp.Backend) -> None:
    device = vendor_backend.create_device()
    context = device.create_context()
    graph = add_graph(context)
    inputs = {"a": numbers(1), "b": numbers(2)}
    expected = graph.execute(inputs)["o"]
    seen: list[tuple[int, int]] = []
    all_seen = threading.Event()

    def notify(param: int, status: int) -> None:
        seen.append((param, status))
        if len(seen) == 10:
            all_seen.set()

    big = conv_relu_graph(context, size=96, channels=64)
    x = numbers(1, (1, 96, 96, 64))
    executions = [big.execute_async({"x": x}, notify=notify, notify_param=n) for n in range(10)]
    os.kill(device.pid, signal.SIGKILL)
    errors = [execution.exception(PATIENCE_S) for execution in executions]
    assert all(isinstance(error, htp.DeviceLost) for error in errors[1:])
    assert all_seen.wait(PATIENCE_S)
    assert sorted(param for param, _ in seen) == list(range(10))
    with pytest.raises(htp.DeviceLost):
        graph.execute(inputs)
    with device.create_context() as again:  # waits for the new process
        np.testing.assert_array_equal(add_graph(again).execute(inputs)["o"], expected)
    assert device.restarts == 1
    device.free()


@pytest.mark.vendor
def test_an_idle_process_that_dies_is_noticed_and_replaced(vendor_backend: htp.Backend) -> None:
    with vendor_backend.create_device() as device:
        context, old = device.create_context(), device.pid
        os.kill(old, signal.SIGKILL)
        while context.opened.life.state is not State.LOST:
            os.sched_yield()
        assert device.pid != old


@pytest.mark.vendor
def test_the_simulated_chip_is_the_one_asked_for(vendor_backend: htp.Backend) -> None:
    with vendor_backend.create_device(soc="SM8750") as device:
        assert device.soc == "SM8750"
        info = device.info()
        assert info["library"].endswith("libQnnHtp.so")
        assert info["pid"] == device.pid != os.getpid()
    with pytest.raises(htp.UnsupportedFeature, match=r"SM7325.*newer library"):
        vendor_backend.create_device(soc="SM7325")


@pytest.mark.vendor
def test_what_the_library_does_not_have_is_refused_in_words(
    vendor_backend: htp.Backend, vendor_context: htp.Context
) -> None:
    graph = vendor_context.create_graph("dynamic")
    x = graph.add_tensor("x", (4, 8), "float32", kind="app_write", dynamic=(True, False))
    y = graph.add_tensor("y", (4, 8), "float32", kind="app_read", dynamic=(True, False))
    graph.add_node("Relu", inputs=[x], outputs=[y])
    with pytest.raises(htp.UnsupportedFeature, match="'x' has dynamic dimensions"):
        graph.finalize()
    assert not vendor_backend.has_capability("TENSOR_SUPPORT_DYNAMIC_DIMENSIONS")
    assert vendor_backend.has_capability("GRAPH_SUPPORT_ASYNC_EXECUTION")
    with pytest.raises(htp.UnsupportedFeature, match="apps"):
        vendor_context.create_app("camera")
    for options, word in (
        ({"name": "shared"}, "name"),
        ({"transport": "inprocess"}, "inprocess"),
        ({"threads": 2}, "threads"),
        ({"parallel_graphs": True}, "parallel_graphs"),
        ({"vtcm_windowing": True}, "vtcm_windowing"),
    ):
        with pytest.raises(htp.UnsupportedFeature, match=word):
            vendor_backend.create_device(**options)  # type: ignore[arg-type]


def test_a_library_that_is_not_there_is_an_error_at_once(tmp_path: Any) -> None:
    with pytest.raises(htp.UnsupportedFeature, match="cannot be read"):
        htp.Backend(library=tmp_path / "libQnnHtp.so")
    text = tmp_path / "text.so"
    text.write_text("not a library")
    with pytest.raises(htp.FormatError, match="no ELF header"):
        htp.Backend(library=str(text))


@pytest.mark.vendor
def test_edf_goes_by_deadlines(vendor_backend: htp.Backend) -> None:
    device = vendor_backend.create_device(policy="edf")
    with device.create_context() as context:
        graphs = [add_graph(context, name) for name in ("first", "late", "soon")]
        feed = {"a": numbers(1), "b": numbers(2)}
        hold(device)
        deadlines = (1, 900_000_000, 600_000_000)
        asked = [graph.execute_async(feed, deadline_us=us) for graph, us in zip(graphs, deadlines, strict=True)]
        release(device)
        first, late, soon = (execution.result(PATIENCE_S) and execution.record for execution in asked)
        assert first.finished_ns < soon.finished_ns < late.finished_ns
    device.free()


@pytest.mark.vendor
def test_a_copy_of_the_library_beside_it_is_refused(tmp_path: Path) -> None:
    library = find_library()
    assert library is not None
    with htp.Backend(library=library) as first, htp.Backend(library=shutil.copy(library, tmp_path)) as second:
        assert first.create_device(soc="SM8550").pid
        with pytest.raises(htp.UnsupportedFeature, match="another copy") as caught:
            second.create_device(soc="SM8550")
        assert caught.value.name == "QNN_COMMON_ERROR_LOADING_BINARIES"
