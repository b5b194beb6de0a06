"""LoRA weight sharing: one part of a binary, and one piece of memory, is for the adapters of all graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.program.binary import read_binary

SIZE = 256
RNG = np.random.default_rng(11)
X = RNG.normal(size=(1, SIZE)).astype(np.float32)
RANKS = {"small": 16, "large": 64, "middle": 32}
LARGEST = 2 * SIZE * 64 * 4
ALL = sum(2 * SIZE * rank * 4 for rank in RANKS.values())


def adapter(rank: int) -> dict[str, np.ndarray]:
    return {
        "a": RNG.normal(size=(SIZE, rank)).astype(np.float32),
        "b": RNG.normal(size=(rank, SIZE)).astype(np.float32) / rank,
    }


BASES = {name: adapter(rank) for name, rank in RANKS.items()}


def thin_graph(context: htp.Context, name: str) -> htp.Graph:
    """A product with two updateable matrices."""
    base, rank = BASES[name], RANKS[name]
    graph = context.create_graph(name)
    x = graph.add_tensor("x", (1, SIZE), "float32", kind="app_write")
    a = graph.add_tensor("a", (SIZE, rank), "float32", kind="updateable_static", data=base["a"])
    b = graph.add_tensor("b", (rank, SIZE), "float32", kind="updateable_static", data=base["b"])
    t = graph.add_tensor("t", (1, rank), "float32")
    y = graph.add_tensor("y", (1, SIZE), "float32", kind="app_read")
    graph.add_node("MatMul", inputs=[x, a], outputs=[t])
    graph.add_node("MatMul", inputs=[t, b], outputs=[y])
    graph.finalize()
    return graph


def made(device: htp.Device, **options: Any) -> tuple[bytes, dict[str, np.ndarray], dict[str, bytes]]:
    """A binary of all graphs, what each computes, and a section with each one's own adapter."""
    with device.create_context(**options) as context:
        results = {name: thin_graph(context, name).execute({"x": X})["y"] for name in RANKS}
        sections = {name: context.get_binary_section(name, BASES[name]) for name in RANKS}
        return context.get_binary(), results, sections


def weights_counted(device: htp.Device) -> int:
    (domain,) = [domain for session in device.info()["sessions"] for domain in session["domains"]]
    return int(domain["memory"]["weights"])


@pytest.mark.parametrize(("shared", "nbytes"), [(False, ALL), (True, LARGEST)])
def test_updateable_weights_take_the_room_of_all_graphs_or_of_the_largest(
    backend: htp.Backend, shared: bool, nbytes: int
) -> None:
    device = backend.create_device()
    binary, results, sections = made(device, lora_weight_sharing_enabled=shared)
    assert nbytes < len(binary) < nbytes + 40_000
    with device.create_context_from_binary(binary) as context:
        loaded = weights_counted(device)
        assert nbytes <= loaded < nbytes + 20_000
        for name in RANKS:
            context.apply_binary_section(name, sections[name])
            np.testing.assert_array_equal(context.graph(name).execute({"x": X})["y"], results[name])
            assert not shared or weights_counted(device) == loaded, "in the memory that was there"


def test_the_largest_graphs_weights_are_a_part_of_their_own(backend: htp.Backend) -> None:
    device = backend.create_device()
    binary = read_binary(made(device, lora_weight_sharing_enabled=True)[0])
    parts = {name: binary.packed(name).updates for name in RANKS}
    assert len(set(parts.values())) == 1
    np.testing.assert_array_equal(binary.program("large").statics["a"], BASES["large"]["a"])
    assert {name: binary.packed(name).foreign_updates for name in RANKS} == {
        "small": True,
        "large": False,
        "middle": True,
    }


def test_data_that_is_not_in_the_binary_is_not_made_up(backend: htp.Backend) -> None:
    device = backend.create_device()
    binary, results, sections = made(device, lora_weight_sharing_enabled=True)
    with device.create_context_from_binary(binary) as context:
        with pytest.raises(htp.WrongState, match="'small' has no data of its updateable tensors"):
            context.get_binary_section("small")
        context.get_binary_section("large")
        context.apply_binary_section("small", sections["small"])
        assert context.get_binary_section("small", section="updatable_weights") == sections["small"]
        again = context.get_binary()
    assert len(again) == len(binary)
    with device.create_context_from_binary(again) as context:
        context.apply_binary_section("large", context.get_binary_section("large"))
        np.testing.assert_array_equal(context.graph("large").execute({"x": X})["y"], results["large"])
