"""Graphs of a binary that are loaded when they are finalized (defer_graph_init)."""

from __future__ import annotations

import numpy as np
import pytest

import openhtp as htp
from tests.conftest import ramp, relu_graph


@pytest.fixture(scope="module")
def binary(shared_device: htp.Device) -> bytes:
    with shared_device.create_context() as made:
        for name in ("a", "b", "c"):
            relu_graph(made, name)
        return made.get_binary()


@pytest.fixture(params=["rpc", "inprocess"])
def device(backend: htp.Backend, request: pytest.FixtureRequest) -> htp.Device:
    return backend.create_device(transport=request.param)


def on_device(device: htp.Device) -> list[str]:
    (session,) = device.info()["sessions"]
    return list(session["graphs"])


def works(graph: htp.Graph) -> None:
    np.testing.assert_array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))


def test_each_graph_is_loaded_when_it_is_finalized(device: htp.Device, binary: bytes) -> None:
    context = device.create_context_from_binary(binary, defer_graph_init=True)
    assert on_device(device) == []
    a, b = context.graph("a"), context.graph("b")
    assert not a.is_finalized
    with pytest.raises(htp.WrongState, match="call finalize") as caught:
        a.execute({"x": ramp()})
    assert caught.value.name == "QNN_GRAPH_ERROR_GRAPH_NOT_FINALIZED"
    with pytest.raises(htp.WrongState, match="defer_graph_init"):
        context.get_binary()
    with pytest.raises(htp.WrongState):
        a.add_tensor("more", (1,), "float32")
    a.finalize()
    assert on_device(device) == ["a"]
    works(a)
    with pytest.raises(htp.WrongState, match="finalized"):
        a.finalize()
    b.set_config(priority="high")
    context.finalize()
    assert on_device(device) == ["a", "b", "c"]
    works(b)
    assert context.get_binary()
    context.free()
    assert on_device(device) == []


def test_what_is_finalized_has_a_profile_and_may_be_stopped(
    backend: htp.Backend, device: htp.Device, binary: bytes
) -> None:
    context = device.create_context_from_binary(binary, defer_graph_init=True, enable_graphs=["a", "b"])
    signal = backend.create_signal(timeout_us=1)
    with pytest.raises(htp.TimedOut) as caught:
        context.finalize(signal=signal)
    assert caught.value.name == "QNN_GRAPH_ERROR_TIMED_OUT"
    assert not signal.in_use
    assert not context.graph("a").is_finalized
    profile = backend.create_profile("basic")
    context.finalize(profile=profile)
    assert profile.event(300) is not None
    works(context.graph("b"))
    with pytest.raises(htp.WrongState, match="disabled"):
        works(context.graph("c"))


def test_finalize_of_a_context_takes_graphs_that_were_built(shared_device: htp.Device) -> None:
    with shared_device.create_context() as context:
        for name in ("a", "b"):
            graph = context.create_graph(name)
            x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
            y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
            graph.add_node("Relu", inputs=[x], outputs=[y])
        context.finalize()
        works(context.graph("a"))
        works(context.graph("b"))
        context.finalize()  # nothing is left to do


def test_a_callback_wants_its_graphs_now(shared_device: htp.Device, binary: bytes) -> None:
    callback = htp.DmaBufferCallback(lambda request, param: 0, lambda data, param: None)
    with pytest.raises(htp.InvalidArgument, match="callback and defer_graph_init exclude"):
        shared_device.create_context_from_binary(binary, callback=callback, defer_graph_init=True)


def test_a_binary_for_wide_dma_takes_no_buffers_of_the_client(backend: htp.Backend) -> None:
    device = backend.create_device(soc="SM8850")
    with device.create_context(use_extended_udma=True) as made:
        relu_graph(made)
        binary = made.get_binary()
    callback = htp.DmaBufferCallback(lambda request, param: 0, lambda data, param: None)
    with pytest.raises(htp.UnsupportedFeature, match="prepared with use_extended_udma"):
        device.create_context_from_binary(binary, callback=callback)
    with device.create_context_from_binary(binary) as context:
        works(context.graph("g"))
        again = context.get_binary()
    with pytest.raises(htp.UnsupportedFeature, match="prepared with use_extended_udma"):
        device.create_context_from_binary(again, callback=callback)
