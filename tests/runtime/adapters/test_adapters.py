"""Updateable tensors: an adapter is exchanged while its graph stays loaded, and computes as the merged network."""

from __future__ import annotations

import os
import signal as signals
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.testing import hold, release
from tests.waiting import PATIENCE_S, wait_until

SIZE, RANK = 32, 4
DICE = np.random.default_rng(5)
W = (DICE.integers(-8, 8, (SIZE, SIZE)) / 8).astype(np.float32)
X = (DICE.integers(-8, 8, (1, SIZE)) / 8).astype(np.float32)


def adapter(seed: int) -> dict[str, np.ndarray]:
    """Numbers that half precision holds exactly, and products of which it does, too."""
    dice = np.random.default_rng(seed)
    shapes = {"lora_a": (SIZE, RANK), "lora_b": (RANK, SIZE)}
    return {name: (dice.integers(-3, 4, shape) / 4).astype(np.float32) for name, shape in shapes.items()}


BASE, FIRST, SECOND = adapter(1), adapter(2), adapter(3)


def lora_graph(context: htp.Context, name: str = "g", base: dict[str, np.ndarray] = BASE) -> htp.Graph:
    graph = context.create_graph(name)
    x = graph.add_tensor("x", (1, SIZE), "float32", kind="app_write")
    w = graph.add_tensor("w", W.shape, "float32", data=W)
    a = graph.add_tensor("lora_a", (SIZE, RANK), "float32", kind="updateable_static", data=base["lora_a"])
    b = graph.add_tensor("lora_b", (RANK, SIZE), "float32", kind="updateable_static", data=base["lora_b"])
    between = [graph.add_tensor(f"t{n}", (1, size), "float32") for n, size in enumerate((SIZE, RANK, SIZE))]
    y = graph.add_tensor("y", (1, SIZE), "float32", kind="app_read")
    graph.add_node("MatMul", inputs=[x, w], outputs=[between[0]])
    graph.add_node("MatMul", inputs=[x, a], outputs=[between[1]])
    graph.add_node("MatMul", inputs=[between[1], b], outputs=[between[2]])
    graph.add_node("ElementWiseAdd", inputs=[between[0], between[2]], outputs=[y])
    graph.finalize()
    return graph


def merged(context: htp.Context, data: dict[str, np.ndarray]) -> np.ndarray:
    """What the network computes whose weights have the adapter in them."""
    graph = context.create_graph(f"merged {len(context.graphs)}")
    x = graph.add_tensor("x", (1, SIZE), "float32", kind="app_write")
    w = graph.add_tensor("w", W.shape, "float32", data=W + data["lora_a"] @ data["lora_b"])
    y = graph.add_tensor("y", (1, SIZE), "float32", kind="app_read")
    graph.add_node("MatMul", inputs=[x, w], outputs=[y])
    graph.finalize()
    return graph.execute({"x": X})["y"]


def result(graph: htp.Graph) -> np.ndarray:
    return graph.execute({"x": X})["y"]


def close(found: np.ndarray, expected: np.ndarray) -> None:
    """Results are half precision: four roundings on one side, one on the other."""
    np.testing.assert_allclose(found, expected, rtol=4e-3, atol=4e-3)


def test_an_adapter_computes_as_the_merged_network(context: htp.Context) -> None:
    graph = lora_graph(context)
    before = result(graph)
    close(before, merged(context, BASE))
    for data in (FIRST, SECOND, BASE):
        context.apply_binary_section("g", context.get_binary_section("g", data))
        close(result(graph), merged(context, data))
    np.testing.assert_array_equal(result(graph), before)
    assert not np.allclose(merged(context, FIRST), merged(context, SECOND), atol=0.1)


def test_a_binary_carries_its_base_and_takes_adapters(context: htp.Context, device: htp.Device) -> None:
    graph = lora_graph(context)
    section = context.get_binary_section(graph, FIRST)
    with device.create_context_from_binary(context.get_binary()) as restored:
        again = restored.graph("g")
        close(result(again), merged(context, BASE))
        restored.apply_binary_section(again, section)
        close(result(again), merged(context, FIRST))
        assert restored.get_binary_section("g") == section
        assert again.was_prepared
    close(result(graph), merged(context, BASE))


def test_some_tensors_can_be_changed_alone(context: htp.Context) -> None:
    graph = lora_graph(context)
    context.apply_binary_section("g", context.get_binary_section("g", {"lora_a": FIRST["lora_a"]}))
    close(result(graph), merged(context, {**BASE, "lora_a": FIRST["lora_a"]}))
    context.apply_binary_section("g", context.get_binary_section("g", {"lora_b": FIRST["lora_b"]}))
    close(result(graph), merged(context, FIRST))


def test_fixed_point_weights(context: htp.Context) -> None:
    scale, steps = htp.ScaleOffset(0.05, -128), htp.ScaleOffset(0.02, 0)
    first, second = (np.random.default_rng(n).integers(-100, 100, (16, 8)).astype(np.int8) for n in (1, 2))

    def build(name: str, kind: str, data: np.ndarray) -> htp.Graph:
        graph = context.create_graph(name)
        x = graph.add_tensor("x", (1, 8), "ufixed8", quant=scale, kind="app_write")
        w = graph.add_tensor("w", (16, 8), "sfixed8", quant=steps, kind=kind, data=data)
        y = graph.add_tensor("y", (1, 16), "ufixed8", quant=htp.ScaleOffset(0.3, -128), kind="app_read")
        graph.add_node("FullyConnected", inputs=[x, w], outputs=[y])
        graph.finalize()
        return graph

    x = np.arange(100, 108, dtype=np.uint8).reshape(1, 8)
    graph = build("g", "updateable_static", first)
    context.apply_binary_section("g", context.get_binary_section("g", {"w": second}))
    expected = build("merged", "static", second).execute({"x": x})["y"].astype(int)
    found = graph.execute({"x": x})["y"].astype(int)
    assert np.abs(found - expected).max() <= 1
    assert np.abs(build("old", "static", first).execute({"x": x})["y"].astype(int) - expected).max() > 1


def test_executions_under_way_keep_their_adapter(backend: htp.Backend) -> None:
    device = backend.create_device()
    context = device.create_context()
    graph = lora_graph(context)
    expected = {name: merged(context, data) for name, data in (("base", BASE), ("first", FIRST))}
    hold(device)
    old = [graph.execute_async({"x": X}) for _ in range(3)]
    wait_until(lambda: device.info()["sessions"][0]["pending"] == 3)
    context.apply_binary_section("g", context.get_binary_section("g", FIRST))
    new = [graph.execute_async({"x": X}) for _ in range(3)]
    release(device)
    for run in old:
        close(run.result(PATIENCE_S)["y"], expected["base"])
    for run in new:
        close(run.result(PATIENCE_S)["y"], expected["first"])
    close(result(graph), expected["first"])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda s: s[:-1] + bytes([s[-1] ^ 1]), "checksum"),
        (lambda s: s[:10], "shorter"),
        (lambda s: s[:-4], "checksum"),
        (lambda s: b"X" + s[1:], "starts with"),
        (lambda s: s[:8] + b"\x09" + s[9:], "version 9"),
        (lambda s: s[:16] + b"\xff" * 8 + s[24:], "truncated"),
        (lambda s: 3, "section is an int"),
    ],
)
def test_a_damaged_section_changes_nothing(context: htp.Context, spoil: Any, words: str) -> None:
    graph = lora_graph(context)
    before = result(graph)
    for adapter in (FIRST, BASE):
        with pytest.raises(htp.QnnError, match=words):
            context.apply_binary_section("g", spoil(context.get_binary_section("g", adapter)))
    np.testing.assert_array_equal(result(graph), before)
    assert context.get_binary_section("g") == context.get_binary_section("g", BASE)


def test_the_checksum_can_be_skipped_and_nothing_else(device: htp.Device, context: htp.Context) -> None:
    lora_graph(context)
    section = context.get_binary_section("g", FIRST)
    damaged = section[:-1] + bytes([section[-1] ^ 1])
    with device.create_context_from_binary(
        context.get_binary(), skip_validation_on_binary_section=True
    ) as restored:
        restored.apply_binary_section("g", damaged)
        with pytest.raises(htp.BadBinary, match="truncated"):
            restored.apply_binary_section("g", section[:-4])
        with pytest.raises(htp.BadBinary, match="too many"):
            restored.apply_binary_section("g", section + b"1234")


def test_sections_of_another_graph_are_refused(context: htp.Context) -> None:
    lora_graph(context)
    other = lora_graph(context, "other")
    plain = context.create_graph("plain")
    x = plain.add_tensor("x", (1, 8), "float32", kind="app_write")
    plain.add_node("Relu", inputs=[x], outputs=[plain.add_tensor("y", (1, 8), "float32", kind="app_read")])
    with pytest.raises(htp.WrongState, match="finalize"):
        context.get_binary_section("plain")
    plain.finalize()
    section = context.get_binary_section(other, FIRST)
    with pytest.raises(htp.InvalidArgument, match="for graph 'other'"):
        context.apply_binary_section("g", section)
    with pytest.raises(htp.UnsupportedFeature, match="no updateable tensors"):
        context.apply_binary_section("plain", section)
    with pytest.raises(htp.InvalidArgument, match="updateable tensors of graph 'g' are"):
        context.get_binary_section("g", {"w": W})
    with pytest.raises(htp.InvalidArgument, match="stored type"):
        context.get_binary_section("g", {"lora_a": np.zeros(3, np.float32)})
    with context.device.create_context() as elsewhere, pytest.raises(htp.InvalidArgument, match="does not exist"):
        elsewhere.apply_binary_section("g", section)


def test_updateable_tensors_are_not_folded_away(context: htp.Context) -> None:
    graph = context.create_graph("g")
    u = graph.add_tensor("u", (1, 8), "float32", kind="updateable_static", data=np.full((1, 8), -1, np.float32))
    x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
    t = graph.add_tensor("t", (1, 8), "float32")
    y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
    graph.add_node("Relu", inputs=[u], outputs=[t])
    graph.add_node("ElementWiseAdd", inputs=[t, x], outputs=[y])
    graph.finalize()
    zeros = np.zeros((1, 8), np.float32)
    assert graph.execute({"x": zeros})["y"].max() == 0
    context.apply_binary_section("g", context.get_binary_section("g", {"u": np.full((1, 8), 3, np.float32)}))
    assert graph.execute({"x": zeros})["y"].min() == 3


def test_shared_lora_memory_holds_one_adapter_at_a_time(device: htp.Device) -> None:
    with device.create_context(lora_weight_sharing_enabled=True) as making:
        for name in ("a", "b"):
            lora_graph(making, name)
        binary = making.get_binary()
        sections = {name: making.get_binary_section(name, FIRST) for name in ("a", "b")}
        expected = merged(making, FIRST)
    with device.create_context_from_binary(binary) as context:
        a, b = context.graph("a"), context.graph("b")
        with pytest.raises(htp.QnnError, match="apply_binary_section for it first"):
            a.execute({"x": X})
        (session,) = device.info()["sessions"]
        before = session["bytes"]
        context.apply_binary_section("a", sections["a"])
        close(result(a), expected)
        context.apply_binary_section("b", sections["b"])
        close(result(b), expected)
        with pytest.raises(htp.QnnError, match="not this graph's now"):
            a.execute({"x": X})
        (session,) = device.info()["sessions"]
        assert session["bytes"] - before < 2 * len(sections["a"])
        context.apply_binary_section("a", sections["a"])
        close(result(a), expected)


def test_what_an_adapter_takes_is_given_back(device: htp.Device) -> None:
    def held() -> int:
        (session,) = device.info()["sessions"]
        return int(session["bytes"])

    with device.create_context() as context:
        graph = lora_graph(context)
        base = held()
        section = context.get_binary_section("g", FIRST)
        for _ in range(3):
            context.apply_binary_section("g", section)
            result(graph)  # its slots
        assert base + len(section) <= held()
        once = held()
        context.apply_binary_section("g", section)
        assert held() == once
    assert held() == 0


def test_a_device_that_dies_meanwhile(backend: htp.Backend) -> None:
    device = backend.create_device()
    context = device.create_context()
    lora_graph(context)
    section = context.get_binary_section("g", FIRST)
    os.kill(device.pid, signals.SIGSTOP)
    with pytest.raises(htp.TimedOut):
        context.apply_binary_section("g", section, signal=backend.create_signal(10_000))
    os.kill(device.pid, signals.SIGKILL)
    with pytest.raises(htp.DeviceLost):
        context.apply_binary_section("g", section)


@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])
def test_graphs_that_are_switched_keep_their_adapters(device: htp.Device, shared: bool) -> None:
    """The section that was applied last is applied again when its graph is loaded again."""
    with device.create_context(lora_weight_sharing_enabled=shared) as making:
        for name in ("a", "b"):
            lora_graph(making, name)
        binary = making.get_binary()
        sections = {"a": making.get_binary_section("a", FIRST), "b": making.get_binary_section("b", SECOND)}
        expected = {"a": merged(making, FIRST), "b": merged(making, SECOND)}
    with device.create_context_from_binary(binary, memory_limit_hint=1, is_persistent_binary=True) as context:
        for name, section in sections.items():
            context.apply_binary_section(name, section)
        for name in ("a", "b", "a", "b", "b", "a"):
            close(result(context.graph(name)), expected[name])
