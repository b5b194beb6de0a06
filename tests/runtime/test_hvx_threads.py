"""HVX threads of a graph: changed before its first execution, and no more after it."""

from __future__ import annotations

import numpy as np
import pytest

import openhtp as htp
from tests.conftest import ramp, relu_graph


def test_threads_change_until_the_first_execution() -> None:
    with htp.Backend() as backend, backend.create_device(soc="SM8650", transport="inprocess") as device:
        context = device.create_context()
        graph = context.create_graph("g", hvx_threads=4)
        x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
        y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
        graph.add_node("Relu", name="r", inputs=[x], outputs=[y])
        graph.set_config(hvx_threads=3)
        graph.finalize()
        graph.set_config(hvx_threads=2)
        assert graph.hvx_threads == 2
        with pytest.raises(htp.QnnError, match="HVX threads"):
            graph.set_config(hvx_threads=60)
        assert graph.hvx_threads == 2
        graph.execute({"x": np.ones((1, 8), np.float32)})
        with pytest.raises(htp.QnnError, match="cannot be changed"):
            graph.set_config(hvx_threads=1)
        assert graph.hvx_threads == 2


def test_b3_other_options_change_until_the_graph_is_finalized() -> None:
    with htp.Backend() as backend, backend.create_device(soc="SM8650", transport="inprocess") as device:
        graph = device.create_context().create_graph("g", vtcm_bytes=1 << 20)
        x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
        y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
        graph.add_node("Relu", name="r", inputs=[x], outputs=[y])
        graph.set_config(vtcm_mb=4, slc_alloc_enable=True, precision="float32")
        with pytest.raises(htp.InvalidArgument, match="did you mean"):
            graph.set_config(vtcm_mbs=2)  # type: ignore[call-arg]
        graph.finalize()
        assert (graph.options.vtcm_bytes, graph.options.slc_alloc_enable) == (4 << 20, True)
        for on in (False, False, True):
            graph.set_config(slc_alloc_enable=on)
            assert graph.options.slc_alloc_enable is on
        with pytest.raises(htp.WrongState, match="fixed when a graph is finalized") as refused:
            graph.set_config(vtcm_mb=2, priority="high")
        assert refused.value.code == 6024
        assert graph.priority == graph.context.priority


def test_b1_threads_of_a_deferred_graph_hold_once_it_is_loaded() -> None:
    with htp.Backend() as backend, backend.create_device(soc="SM8650", transport="inprocess") as device:
        context = device.create_context()
        relu_graph(context)
        restored = device.create_context_from_binary(context.get_binary(), defer_graph_init=True)
        graph = restored.graph("g")
        with pytest.raises(htp.InvalidArgument, match="SM8650 has 4 HVX threads"):
            graph.set_config(hvx_threads=60)
        graph.set_config(hvx_threads=2)
        graph.finalize()
        profile = backend.create_profile()
        graph.execute({"x": ramp()}, profile=profile)
        assert {event.type: event.value for event in profile.events()}[8001] == 2
        again = device.create_context_from_binary(restored.get_binary())
        assert again.graph("g").hvx_threads == 2


def test_b1_a_binary_has_the_priority_of_now() -> None:
    with htp.Backend() as backend, backend.create_device(soc="SM8650", transport="inprocess") as device:
        context = device.create_context()
        graph = relu_graph(context)
        size = context.get_binary_size()  # which is kept until it is asked for
        graph.set_config(priority="high", hvx_threads=1)
        again = device.create_context_from_binary(context.get_binary()).graph("g")
        assert size
        assert (again.priority, again.hvx_threads) == (htp.Priority.HIGH, 1)


def test_a_binary_of_a_chip_with_more_threads_runs_with_those_that_there_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with htp.Backend() as backend:
        with backend.create_device(soc="SM8750", transport="inprocess") as larger:
            graph = relu_graph(larger.create_context(), hvx_threads=6)
            binary, wanted = graph.context.get_binary(), graph.execute({"x": ramp()})["y"]
        device = backend.create_device(soc="SM8650", transport="inprocess")
        (graph,) = device.create_context_from_binary(binary).graphs.values()
        profile = backend.create_profile()
        assert (graph.execute({"x": ramp()}, profile=profile)["y"] == wanted).all()
        assert {event.type: event.value for event in profile.events()}[8001] == graph.hvx_threads == 4
        assert "prepared for 6 HVX threads; SM8650 has 4" in caplog.text
