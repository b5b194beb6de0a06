"""What the vendor's page says about options, tried on devices: one behaviour each."""

from __future__ import annotations

import pytest

import openhtp as htp
from openhtp.core import telling
from openhtp.hw.catalog import catalog
from openhtp.testing import hold, release
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S


def device_of(backend: htp.Backend, soc: str) -> htp.Device:
    return backend.create_device(soc=soc, host="thread")


def test_nodes_are_added_in_the_order_of_their_data(context: htp.Context) -> None:
    graph = context.create_graph("g")
    x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
    t = graph.add_tensor("t", (1, 8), "float32")
    y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
    with pytest.raises(
        htp.WrongState, match="'t' is produced by no node so far; add nodes in the order"
    ) as caught:
        graph.add_node("Relu", inputs=[t], outputs=[y])
    assert caught.value.name == "QNN_GRAPH_ERROR_UNCONNECTED_NODE"
    graph.add_node("Relu", inputs=[x], outputs=[t])
    graph.add_node("Relu", inputs=[t], outputs=[y])
    graph.finalize()


@pytest.mark.parametrize("dtype", ["ufixed8", "ufixed16"])
@pytest.mark.parametrize("soc", sorted({soc.name for soc in catalog().values()}))
def test_fixed_point_runs_on_every_chip(shared_backend: htp.Backend, soc: str, dtype: str) -> None:
    with device_of(shared_backend, soc) as device:
        graph = device.create_context().create_graph("g")
        quant = htp.ScaleOffset(0.1, -100)
        x = graph.add_tensor("x", (1, 8), dtype, quant=quant, kind="app_write")
        y = graph.add_tensor("y", (1, 8), dtype, quant=quant, kind="app_read")
        graph.add_node("Relu", inputs=[x], outputs=[y])
        graph.finalize()
        given = (100 + 10 * ramp()).astype(x.dtype.numpy)
        assert (graph.execute({"x": given})["y"] == given.clip(100)).all()


def test_threads_that_are_left_open_are_all_that_the_chip_has(shared_backend: htp.Backend) -> None:
    with device_of(shared_backend, "SM8750") as device:
        graph = relu_graph(device.create_context())
        profile = shared_backend.create_profile()
        graph.execute({"x": ramp()}, profile=profile)
        assert {event.type: event.value for event in profile.events()}[8001] == 6


def binary_of(device: htp.Device) -> bytes:
    with device.create_context() as context:
        relu_graph(context)
        return context.get_binary()


def test_va_optimization_is_of_some_chips_only(shared_backend: htp.Backend, shared_device: htp.Device) -> None:
    binary = binary_of(shared_device)
    with device_of(shared_backend, "SM8450") as device:
        with pytest.raises(htp.UnsupportedFeature, match="needs a Hexagon v73 or newer; this is SM8450") as caught:
            device.create_contexts_from_binaries([binary], share_resources=True)
        assert (caught.value.name, caught.value.code) == ("QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE", 1000)
        kind = "sequential_without_va_optimization"
        creation = device.create_contexts_from_binaries(
            [binary], share_resources=True, share_resources_optimization_type=kind
        )
        assert len(creation.result(PATIENCE_S)) == 1


def test_how_to_share_is_ignored_where_nothing_is_shared(shared_device: htp.Device) -> None:
    """This type needs a v81, which the device is not."""
    creation = shared_device.create_contexts_from_binaries(
        [binary_of(shared_device)], share_resources_optimization_type="concurrent_optimization"
    )
    for context in creation.result(PATIENCE_S):
        context.free()


def test_contexts_that_share_in_turn_are_told_of_when_queued_together(
    shared_device: htp.Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telling, "told", set())
    creation = shared_device.create_contexts_from_binaries([binary_of(shared_device)] * 2, share_resources=True)
    contexts = creation.result(PATIENCE_S)
    for context in contexts:
        context.graph("g").execute({"x": ramp()})
    assert "share resources sequentially" not in caplog.text
    hold(shared_device)
    runs = [context.graph("g").execute_async({"x": ramp()}) for context in contexts for _ in range(5)]
    release(shared_device)
    for run in runs:
        assert (run.result(PATIENCE_S)["y"] == ramp().clip(0)).all()
    assert caplog.text.count("share resources sequentially") == 1
    for context in contexts:
        context.free()


def test_graphs_of_a_context_may_differ_in_priority(shared_device: htp.Device) -> None:
    with shared_device.create_context() as context:
        for name in ("low", "high"):
            relu_graph(context, name, priority=name)
        binary = context.get_binary()
    with shared_device.create_context_from_binary(binary) as restored:
        assert [restored.graph(name).priority for name in ("low", "high")] == [
            htp.Priority.LOW,
            htp.Priority.HIGH,
        ]


@pytest.mark.parametrize("option", ["dlbc", "dlbc_weights", "slc_alloc_enable"])
def test_compression_is_prepared_on_the_host(shared_backend: htp.Backend, option: str) -> None:
    with shared_backend.create_device(platform="android", host="thread") as device:
        context = device.create_context()
        with pytest.raises(htp.UnsupportedFeature, match="prepared offline, on linux; this device's platform is"):
            context.create_graph("g", **{option: True})  # type: ignore[arg-type]
        assert not context.graphs


@pytest.mark.parametrize(
    ("memory", "level", "told"),
    [
        ("registered", None, []),
        ("registered", "basic", []),
        ("raw", None, ["of tensors that do not lie in registered memory"]),
        ("registered", "detailed", ["with a profile above the basic level"]),
    ],
)
def test_asynchronous_executions_that_gain_nothing_on_a_chip_are_told_of_once(
    shared_device: htp.Device,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    memory: str,
    level: str | None,
    told: list[str],
) -> None:
    monkeypatch.setattr(telling, "told", set())
    caplog.set_level("INFO", "openhtp")
    with shared_device.create_context() as context:
        graph = relu_graph(context)
        inputs, outputs = {"x": ramp()}, {"y": ramp()}
        if memory == "registered":
            inputs = {"x": context.register_memory(ramp().nbytes).array("x")}
            outputs = {"y": context.register_memory(ramp().nbytes).array("y")}
        for _ in range(2):
            graph.execute(inputs, outputs)
            profile = None if level is None else shared_device.backend.create_profile(level)
            graph.execute_async(inputs, outputs, profile=profile).result(PATIENCE_S)
    words = [record.message for record in caplog.records if "no faster than synchronous" in record.message]
    assert [each.split("executions ")[1].split(" are ")[0] for each in words] == told
