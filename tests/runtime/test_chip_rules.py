"""What a chip does not have is refused when a graph is made or finalized, not when it runs or is looked at."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.core import telling
from tests.conftest import ramp, relu_graph


@pytest.fixture
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has told nothing yet."""
    monkeypatch.setattr(telling, "told", set())


def device_of(backend: htp.Backend, soc: str) -> htp.Device:
    return backend.create_device(soc=soc, host="thread")


# C6: half precision is of select chips


def test_c6_floats_need_a_chip_with_half_precision(shared_backend: htp.Backend) -> None:
    with device_of(shared_backend, "SM8350") as device:
        context = device.create_context()
        with pytest.raises(htp.UnsupportedFeature, match="SM8350 has no half precision, and") as caught:
            relu_graph(context)
        assert (caught.value.name, caught.value.code) == ("QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE", 1000)
        assert "node 'relu'" in str(caught.value)
        graph = context.graph("g")
        assert not graph.is_finalized
        assert device.info()["sessions"][0]["graphs"] == []
        with pytest.raises(htp.UnsupportedFeature):
            relu_graph(device.create_context(prepare_only=True))


def test_c6_fixed_point_between_floats_needs_none(shared_backend: htp.Backend) -> None:
    """Inputs that are quantized and results that leave as floats are no float math."""
    with device_of(shared_backend, "SM8350") as device:
        graph = device.create_context().create_graph("g")
        quant = htp.ScaleOffset(0.1, -100)
        x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
        a, b = (graph.add_tensor(name, (1, 8), "ufixed8", quant=quant) for name in "ab")
        y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
        graph.add_node("Quantize", inputs=[x], outputs=[a])
        graph.add_node("Relu", inputs=[a], outputs=[b])
        graph.add_node("Dequantize", inputs=[b], outputs=[y])
        graph.finalize()
        assert np.abs(graph.execute({"x": ramp()})["y"] - ramp().clip(0)).max() <= 0.1


def test_c6_a_binary_of_floats_is_refused_too(shared_backend: htp.Backend, shared_device: htp.Device) -> None:
    with shared_device.create_context() as context:
        relu_graph(context)
        binary = context.get_binary()
    with (
        device_of(shared_backend, "SM8350") as device,
        pytest.raises(htp.UnsupportedFeature, match="SM8350 has no half precision"),
    ):
        device.create_context_from_binary(binary)


# C5: 32 bits are the host's


@pytest.mark.usefixtures("nothing_told")
def test_c5_floats_of_32_bits_are_told_of_once(
    shared_backend: htp.Backend, caplog: pytest.LogCaptureFixture
) -> None:
    with device_of(shared_backend, "SM8350") as device, caplog.at_level(logging.WARNING):
        context = device.create_context()
        for name in "ab":
            graph = relu_graph(context, name, precision="float32")
            assert (graph.execute({"x": ramp() / 3})["y"] == (ramp() / 3).clip(0)).all()
    told = [record.message for record in caplog.records if "32 bits" in record.message]
    assert len(told) == 1
    assert "no HTP does" in told[0]


# C7: cores


def test_c7_more_cores_than_the_chip_has_are_refused_when_they_are_asked_for(shared_backend: htp.Backend) -> None:
    with device_of(shared_backend, "SM8650") as device:
        context = device.create_context()
        with pytest.raises(htp.InvalidArgument, match="num_cores is 2; SM8650 has 1") as caught:
            context.create_graph("g", num_cores=2)
        assert caught.value.name == "QNN_GRAPH_ERROR_INVALID_ARGUMENT"
        assert not context.graphs
        graph = context.create_graph("g")
        with pytest.raises(htp.InvalidArgument, match="num_cores is 2; SM8650 has 1"):
            graph.set_config(num_cores=2)
        assert graph.options.num_cores == 1
    with device_of(shared_backend, "SA8775P") as device:
        binary = relu_graph(device.create_context(), num_cores=2).context.get_binary()
    with (
        device_of(shared_backend, "SM8650") as device,
        pytest.raises(htp.InvalidArgument, match="num_cores is 2; SM8650 has 1"),
    ):
        device.create_context_from_binary(binary)


# C12: products of 16 with 16 bits


def wide(
    context: htp.Context,
    *,
    op: str = "FullyConnected",
    offset: int = 0,
    highest: int = 100,
    kind: str = "sfixed16",
) -> htp.Graph:
    graph = context.create_graph("g")
    quant = htp.ScaleOffset(0.001, -32768)
    x = graph.add_tensor("x", (1, 8), "ufixed16", quant=quant, kind="app_write")
    data = np.full((8, 8), highest, kind.replace("sfixed", "int").replace("ufixed", "uint"))
    w = graph.add_tensor("w", data.shape, kind, quant=htp.ScaleOffset(0.001, offset), data=data)
    y = graph.add_tensor("y", (1, 8), "ufixed16", quant=quant, kind="app_read")
    graph.add_node(op, name="wide", inputs=[x, w], outputs=[y])
    return graph


@pytest.mark.parametrize(
    ("soc", "change", "words"),
    [
        ("SM8350", {}, "needs v73 or later; SM8350 is v68"),
        ("SM8650", {"offset": -3}, "16-bit weights 'w' have offset -3; expected symmetric ones"),
        ("SM8650", {"op": "MatMul", "offset": -3}, "have offset -3; expected symmetric ones"),
        ("SM8650", {"op": "MatMul", "kind": "ufixed16", "offset": -3}, "have offset -3; expected symmetric ones"),
        ("SM8650", {"highest": 0x7F80}, "32640 among them; expected -0x8000 to 0x7F7F"),
    ],
)
def test_c12_wide_products_have_rules(
    shared_backend: htp.Backend, soc: str, change: dict[str, Any], words: str
) -> None:
    with device_of(shared_backend, soc) as device:
        graph = wide(device.create_context(), **change)
        with pytest.raises(htp.UnsupportedOp, match=words) as caught:
            graph.finalize()
        assert caught.value.code == 3110
        assert not graph.is_finalized


@pytest.mark.parametrize(
    "change", [{}, {"highest": 0x7F7F}, {"op": "MatMul", "kind": "ufixed16", "offset": -32768}], ids=str
)
def test_c12_wide_products_within_the_rules(shared_backend: htp.Backend, change: dict[str, Any]) -> None:
    with device_of(shared_backend, "SM8650") as device:
        wide(device.create_context(), **change).finalize()


# C13: VTCM in two units


def test_c13_vtcm_in_both_units_is_what_was_asked_for_last() -> None:
    with htp.Backend() as backend, device_of(backend, "SM8850") as device:
        context = device.create_context()
        first = context.create_graph("a", vtcm_mb=4, vtcm_bytes=65536)
        last = context.create_graph("b", vtcm_bytes=65536, vtcm_mb=4)
        assert (first.options.vtcm_bytes, last.options.vtcm_bytes) == (65536, 4 << 20)
        first.set_config(vtcm_mb=2)
        assert first.options.vtcm_bytes == 2 << 20


def test_c13_steps_below_a_megabyte_are_of_later_chips(shared_backend: htp.Backend) -> None:
    with device_of(shared_backend, "SM8650") as device:
        context = device.create_context()
        with pytest.raises(
            htp.UnsupportedFeature, match=r"v81 on, and SM8650 is v75: expected whole MB"
        ) as caught:
            context.create_graph("g", vtcm_bytes=65536)
        assert caught.value.code == 1000
        assert not context.graphs
        assert context.create_graph("g", vtcm_bytes=2 << 20).options.vtcm_bytes == 2 << 20
    with device_of(shared_backend, "SM8850") as device:
        assert device.create_context().create_graph("g", vtcm_bytes=65536).options.vtcm_bytes == 65536


@pytest.mark.parametrize(("precision", "dtype"), [("float16", np.float16), ("float32", np.float32)])
def test_a_client_chooses_the_precision_of_its_floats(
    shared_device: htp.Device, precision: str, dtype: type[np.floating[Any]]
) -> None:
    values = np.linspace(-3, 3, 24, dtype=np.float32).reshape(1, 2, 3, 4)
    with shared_device.create_context() as context:
        graph = context.create_graph("g", precision=precision)
        x = graph.add_tensor("x", values.shape, "float32", kind="app_write")
        y = graph.add_tensor("y", values.shape, "float32", kind="app_read")
        graph.add_node("ElementWiseMultiply", name="m", inputs=[x, x], outputs=[y])
        graph.finalize()
        result = graph.execute({"x": values})["y"]
    expected = values.astype(dtype)
    np.testing.assert_array_equal(result, (expected * expected).astype(np.float32))
