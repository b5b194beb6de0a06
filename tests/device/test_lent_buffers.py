"""Buffers of the client's for weights and spill-fill of graphs that are switched (audit B6)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.core.units import MIB
from openhtp.testing import hold, release
from tests.device.test_switching import SWITCHING, WIDE, factor_of, loaded, make_binary, memory_of, run, weights_of
from tests.waiting import PATIENCE_S

USES = ("weights_buffer", "spill_fill_buffer")


@pytest.fixture(scope="module")
def binary() -> Iterator[bytes]:
    with htp.Backend() as backend:
        yield make_binary(backend.create_device(), 1)


@pytest.fixture(params=["process", "thread"])
def device(request: pytest.FixtureRequest, backend: htp.Backend) -> htp.Device:
    return backend.create_device(host=request.param)


def chain(context: htp.Context, name: str) -> None:
    """Four layers, with values in between; the last sum is the same in every element."""
    graph = context.create_graph(name, precision="float32")
    values = graph.add_tensor("x", (1, WIDE), "float32", kind="app_write")
    for layer in range(4):
        data = np.full((WIDE, WIDE), 2.0**-9 * factor_of(name), np.float32)
        weights = graph.add_tensor(f"w{layer}", data.shape, "float32", data=data)
        kind = "app_read" if layer == 3 else "native"
        out = graph.add_tensor("y" if layer == 3 else f"v{layer}", (1, WIDE), "float32", kind=kind)
        graph.add_node("FullyConnected", inputs=[values, weights], outputs=[out])
        values = out
    graph.finalize()


def test_the_loaded_graph_has_its_weights_in_the_client_s_memory(device: htp.Device, binary: bytes) -> None:
    context = device.create_context_from_binary(binary, **SWITCHING)
    before = memory_of(device)
    buffer = context.register_memory(2 * MIB, use="weights_buffer")
    assert loaded(device) == ""
    for name in "ABCDA":
        run(context, name)
        assert loaded(device) == name
        stored = buffer.bytes.view(np.float32)
        factor, weights = factor_of(name), weights_of(name, 1)
        assert np.count_nonzero(stored == factor) == np.count_nonzero(weights == factor)  # all of the graph's
        now = memory_of(device)
        assert now["weights"] < before["weights"] - MIB + 64 * 1024  # none of them is the device's
        assert now["io"] >= 2 * MIB
    buffer.deregister()
    run(context, "B")
    assert memory_of(device)["weights"] == before["weights"]
    context.free()
    assert device.info()["sessions"][0]["bytes"] == 0


def test_a_client_that_changes_its_weights_changes_its_results(device: htp.Device, binary: bytes) -> None:
    context = device.create_context_from_binary(binary, **SWITCHING)
    buffer = context.register_memory(2 * MIB, use="weights_buffer")
    run(context, "A")
    stored = buffer.bytes.view(np.float32)
    stored[stored == factor_of("A")] = 7
    changed = context.graph("A").execute({"x": np.ones((1, WIDE), "f4")})["y"]
    assert np.all((changed == WIDE * 7) | (changed == WIDE * factor_of("A")))
    run(context, "B")
    run(context, "A")  # read anew from the binary


def test_values_between_steps_are_in_the_client_s_spill_fill_buffer(
    backend: htp.Backend, device: htp.Device
) -> None:
    with device.create_context(prepare_only=True) as context:
        for name in "AB":
            chain(context, name)
        stored = context.get_binary()
    context = device.create_context_from_binary(stored, **SWITCHING)
    buffer = context.register_memory(MIB, use="spill_fill_buffer")
    for name in "ABA":
        out = context.graph(name).execute({"x": np.ones((1, WIDE), "f4")})["y"]
        np.testing.assert_allclose(out, factor_of(name) ** 4)
    assert memory_of(device)["spill_fill"] == 0
    if context.graph("A").steps > 1:
        assert np.any(buffer.bytes)


@pytest.mark.parametrize("use", USES)
def test_a_descriptor_of_the_client_s_own(device: htp.Device, binary: bytes, use: str) -> None:
    fd = os.memfd_create("client", os.MFD_ALLOW_SEALING)
    os.truncate(fd, 2 * MIB)
    context = device.create_context_from_binary(binary, **SWITCHING)
    mem = context.register_memory(2 * MIB, fd=fd, use=use)
    os.close(fd)
    assert use in repr(mem)
    run(context, "C")
    context.free()  # with the buffer registered: its memory stays the client's


def test_what_is_wrong_is_refused_and_changes_nothing(device: htp.Device, binary: bytes) -> None:
    context = device.create_context_from_binary(binary, **SWITCHING)
    run(context, "A")
    before = memory_of(device)

    def refused(status: str, nbytes: int, **options: Any) -> None:
        with pytest.raises(htp.QnnError) as caught:
            context.register_memory(nbytes, **options)
        assert caught.value.name == status, caught.value
        assert memory_of(device) == before
        assert loaded(device) == "A"

    refused("QNN_MEM_ERROR_INVALID_SHAPE", 4096, use="weights_buffer")
    refused("QNN_MEM_ERROR_INVALID_ARGUMENT", MIB, use="weights")
    plain = device.create_context()
    with pytest.raises(htp.QnnError, match="switches no graphs") as caught:
        plain.register_memory(MIB, use="weights_buffer")
    assert caught.value.code == 8005
    own = device.create_context_from_binary(binary, weights_buffer=-1, **SWITCHING)
    with pytest.raises(htp.QnnError, match="of the device's own"):
        own.register_memory(2 * MIB, use="weights_buffer")
    own.register_memory(2 * MIB, use="spill_fill_buffer")
    run(own, "D")
    own.free()
    kept = device.create_context_from_binary(binary, graph_retention_order=["A"], **SWITCHING)
    with pytest.raises(htp.QnnError, match="retains graphs"):
        kept.register_memory(2 * MIB, use="weights_buffer")
    kept.free()
    context.register_memory(2 * MIB, use="weights_buffer")
    with pytest.raises(htp.WrongState) as twice:
        context.register_memory(2 * MIB, use="weights_buffer")
    assert twice.value.name == "QNN_MEM_ERROR_ALREADY_REGISTERED"
    run(context, "B")


def test_a_buffer_is_in_use_while_executions_are_under_way(device: htp.Device, binary: bytes) -> None:
    context = device.create_context_from_binary(binary, **SWITCHING)
    buffer = context.register_memory(2 * MIB, use="weights_buffer")
    x = np.ones((1, WIDE), "f4")
    hold(device)
    queued = context.graph("B").execute_async({"x": x})
    assert buffer.in_use
    with pytest.raises(htp.WrongState, match="in use"):
        buffer.deregister()
    with pytest.raises(htp.WrongState, match="under way"):
        context.register_memory(MIB, use="spill_fill_buffer")
    release(device)
    np.testing.assert_allclose(queued.result(PATIENCE_S)["y"], WIDE * factor_of("B"))
    buffer.deregister()
    run(context, "B")


def test_it_is_not_for_tensors(device: htp.Device, binary: bytes) -> None:
    context = device.create_context_from_binary(binary, **SWITCHING)
    buffer = context.register_memory(2 * MIB, use="weights_buffer")
    with pytest.raises(htp.InvalidArgument, match="other memory for tensors"):
        buffer.array("x")
    with pytest.raises(htp.InvalidArgument, match="other memory for tensors"):
        context.graph("A").execute({"x": buffer})
    with pytest.raises(htp.InvalidArgument, match="other memory for tensors"):
        buffer.share_with(context)
