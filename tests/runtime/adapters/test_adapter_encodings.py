"""Updateable encodings: those of any tensor are exchanged while the graph stays loaded, alone or with data."""

from __future__ import annotations

import os
import signal as signals
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.testing import hold, release
from tests.runtime.adapters.test_adapters import lora_graph
from tests.waiting import PATIENCE_S, wait_until

XQ, WQ, TQ, YQ = (
    htp.ScaleOffset(0.05, -128),
    htp.ScaleOffset(0.02, 0),
    htp.ScaleOffset(0.1, -128),
    htp.ScaleOffset(0.3, -128),
)
BASE_CODES = {"x": XQ, "w": WQ, "t": TQ, "y": YQ}
OTHER_CODES = {
    "x": htp.ScaleOffset(0.04, -120),
    "w": htp.ScaleOffset(0.03, 0),
    "t": htp.ScaleOffset(0.2, -100),
    "y": htp.ScaleOffset(0.25, -110),
}
FIXED = {n: np.random.default_rng(n).integers(-100, 100, (16, 8)).astype(np.int8) for n in (1, 2)}
XS = np.arange(90, 98, dtype=np.uint8).reshape(1, 8)


def fixed_graph(
    context: htp.Context, name: str, codes: dict[str, htp.ScaleOffset], data: np.ndarray, *, updateable: bool
) -> htp.Graph:
    """A fully connected layer of fixed point and an activation, every tensor of which has an encoding."""
    kinds = ("updateable_app_write", "updateable_static", "updateable_native", "updateable_app_read")
    x, w, t, y = kinds if updateable else ("app_write", "static", "native", "app_read")
    graph = context.create_graph(name)
    graph.add_tensor("x", (1, 8), "ufixed8", quant=codes["x"], kind=x)
    graph.add_tensor("w", (16, 8), "sfixed8", quant=codes["w"], kind=w, data=data)
    graph.add_tensor("t", (1, 16), "ufixed8", quant=codes["t"], kind=t)
    graph.add_tensor("y", (1, 16), "ufixed8", quant=codes["y"], kind=y)
    graph.add_node("FullyConnected", inputs=["x", "w"], outputs=["t"])
    graph.add_node("Sigmoid" if name == "sigmoid" else "Relu", inputs=["t"], outputs=["y"])
    graph.finalize()
    return graph


def fixed_result(graph: htp.Graph) -> np.ndarray:
    return graph.execute({"x": XS})["y"].astype(int)


def alike(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max() <= 1


def test_encodings_alone_data_alone_and_both(context: htp.Context) -> None:
    graph = fixed_graph(context, "g", BASE_CODES, FIXED[1], updateable=True)
    expected = {
        (codes is OTHER_CODES, number): fixed_result(
            fixed_graph(context, f"{codes is OTHER_CODES} {number}", codes, FIXED[number], updateable=False)
        )
        for codes in (BASE_CODES, OTHER_CODES)
        for number in (1, 2)
    }
    assert len({tuple(rows.ravel()) for rows in expected.values()}) == 4, "they cannot be told apart"
    alike(fixed_result(graph), expected[False, 1])
    base = context.get_binary_section("g")
    codes = context.get_binary_section("g", encodings=OTHER_CODES, section="updatable_quant_params")
    weights = context.get_binary_section("g", {"w": FIXED[2]}, section="updatable_weights")
    assert len(codes) < len(weights) + 200
    context.apply_binary_section("g", codes)
    alike(fixed_result(graph), expected[True, 1])
    assert graph.tensors["y"].quant == OTHER_CODES["y"]
    context.apply_binary_section("g", weights)
    alike(fixed_result(graph), expected[True, 2])
    context.apply_binary_section("g", base)
    alike(fixed_result(graph), expected[False, 1])
    context.apply_binary_section("g", context.get_binary_section("g", {"w": FIXED[2]}, encodings=OTHER_CODES))
    alike(fixed_result(graph), expected[True, 2])
    assert graph.tensors["x"].quant == OTHER_CODES["x"]


def test_a_binary_keeps_its_own_encodings_and_takes_others(context: htp.Context, device: htp.Device) -> None:
    fixed_graph(context, "g", BASE_CODES, FIXED[1], updateable=True)
    section = context.get_binary_section("g", {"w": FIXED[2]}, encodings=OTHER_CODES)
    context.apply_binary_section("g", section)
    base = fixed_result(fixed_graph(context, "base", BASE_CODES, FIXED[1], updateable=False))
    other = fixed_result(fixed_graph(context, "other", OTHER_CODES, FIXED[2], updateable=False))
    with device.create_context_from_binary(context.get_binary(), enable_graphs=["g"]) as restored:
        graph = restored.graph("g")
        alike(fixed_result(graph), base)
        assert graph.tensors["y"].quant == YQ
        restored.apply_binary_section("g", section)
        alike(fixed_result(graph), other)
        assert restored.get_binary_section("g") == section


def test_switched_graphs_keep_their_encodings(context: htp.Context, device: htp.Device) -> None:
    for name in ("a", "b"):
        fixed_graph(context, name, BASE_CODES, FIXED[1], updateable=True)
    section = context.get_binary_section("b", {"w": FIXED[2]}, encodings=OTHER_CODES)
    base = fixed_result(fixed_graph(context, "base", BASE_CODES, FIXED[1], updateable=False))
    other = fixed_result(fixed_graph(context, "other", OTHER_CODES, FIXED[2], updateable=False))
    with device.create_context_from_binary(
        context.get_binary(), enable_graphs=["a", "b"], is_persistent_binary=True, memory_limit_hint=1
    ) as switched:
        switched.apply_binary_section("b", section)  # while it is not loaded
        for name, expected in (("a", base), ("b", other), ("a", base), ("b", other)):
            alike(fixed_result(switched.graph(name)), expected)


def test_executions_under_way_keep_their_encodings(backend: htp.Backend) -> None:
    device = backend.create_device()
    context = device.create_context()
    graph = fixed_graph(context, "g", BASE_CODES, FIXED[1], updateable=True)
    base = fixed_result(graph)
    hold(device)
    old = [graph.execute_async({"x": XS}) for _ in range(3)]
    wait_until(lambda: device.info()["sessions"][0]["pending"] == 3)
    section = context.get_binary_section("g", encodings=OTHER_CODES, section="updatable_quant_params")
    context.apply_binary_section("g", section)
    new = graph.execute_async({"x": XS})
    release(device)
    for run in old:
        np.testing.assert_array_equal(run.result(PATIENCE_S)["y"], base)
    assert np.abs(new.result(PATIENCE_S)["y"].astype(int) - base).max() > 1
    np.testing.assert_array_equal(new.result(PATIENCE_S)["y"], graph.execute({"x": XS})["y"])


def test_what_is_wrong_about_encodings_changes_nothing(context: htp.Context) -> None:
    graph = fixed_graph(context, "g", BASE_CODES, FIXED[1], updateable=True)
    lora_graph(context, "float")
    before = fixed_result(graph)
    for call, words in (
        (
            lambda: context.get_binary_section("g", section="weights"),
            "expected one of updatable, updatable_weights",
        ),
        (lambda: context.get_binary_section("g", encodings={"z": XQ}), "with an encoding are 'x', 'w', 't', 'y'"),
        (lambda: context.get_binary_section("g", encodings={"x": 3}), "expected one like ScaleOffset"),  # type: ignore[dict-item]
        (lambda: context.get_binary_section("g", {"x": XS}), "updateable tensors of graph 'g' are 'w'"),
        (
            lambda: context.get_binary_section("g", {"w": FIXED[2]}, section="updatable_quant_params"),
            "tensors are given for a section of updatable_quant_params",
        ),
        (
            lambda: context.get_binary_section("g", encodings=OTHER_CODES, section="updatable_weights"),
            "encodings are given for a section of updatable_weights",
        ),
    ):
        with pytest.raises(htp.InvalidArgument, match=words):
            call()
    with pytest.raises(htp.UnsupportedFeature, match="with an encoding"):
        context.get_binary_section("float", section="updatable_quant_params")
    section = bytearray(context.get_binary_section("g", encodings=OTHER_CODES))
    section[40] ^= 1
    with pytest.raises(htp.BadBinary, match="checksum"):
        context.apply_binary_section("g", bytes(section))
    np.testing.assert_array_equal(fixed_result(graph), before)
    assert graph.tensors["y"].quant == YQ


def test_a_signal_ends_the_exchange_of_encodings(backend: htp.Backend) -> None:
    device = backend.create_device()
    context = device.create_context()
    graph = fixed_graph(context, "g", BASE_CODES, FIXED[1], updateable=True)
    section = context.get_binary_section("g", encodings=OTHER_CODES)
    os.kill(device.pid, signals.SIGSTOP)
    try:
        with pytest.raises(htp.TimedOut) as caught:
            context.apply_binary_section("g", section, signal=backend.create_signal(10_000))
    finally:
        os.kill(device.pid, signals.SIGCONT)
    assert caught.value.name == "QNN_CONTEXT_ERROR_TIMED_OUT"
    assert graph.tensors["y"].quant == YQ
    context.apply_binary_section("g", section)
    assert graph.tensors["y"].quant == OTHER_CODES["y"]


@pytest.mark.parametrize("section", ["updatable_weights", "updatable_quant_params"])
def test_what_applying_a_section_cost_is_in_a_profile(
    backend: htp.Backend, context: htp.Context, section: str
) -> None:
    fixed_graph(context, "g", BASE_CODES, FIXED[1], updateable=True)
    given: dict[str, Any] = (
        {"encodings": OTHER_CODES} if section.endswith("params") else {"tensors": {"w": FIXED[2]}}
    )
    profile = backend.create_profile("basic")
    context.apply_binary_section("g", context.get_binary_section("g", section=section, **given), profile=profile)
    whole, rpc = profile.event(9001), profile.event(9002)
    assert whole is not None
    assert rpc is not None
    assert whole.value >= rpc.value > 0
    assert profile.event(9003) is not None
    assert profile.event(9004) is not None
