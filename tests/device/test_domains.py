"""Process domains of a live device: packing, buffers that must be with their context, groups, and words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.core.units import KIB, MIB
from tests.waiting import PATIENCE_S

# The document's sizes, with 4 MiB for each GB: a domain has 15.
DOMAIN_MB = 15


def add_graph(context: htp.Context, mib: float, io_kib: int = 16, name: str = "g") -> None:
    """A graph with so much data, and inputs and outputs of so much."""
    wide = 512
    data = np.random.default_rng(int(mib * 1000)).random((int(mib * MIB) // 4 // wide, wide), dtype=np.float32)
    rest = io_kib * KIB // 4 - wide - len(data)
    graph = context.create_graph(name, precision="float32")
    x = graph.add_tensor("x", (1, wide), "float32", kind="app_write")
    y = graph.add_tensor("y", (1, len(data)), "float32", kind="app_read")
    w = graph.add_tensor("w", data.shape, "float32", data=data)
    graph.add_node("FullyConnected", inputs=[x, w], outputs=[y])
    if rest > 0:
        more = graph.add_tensor("more", (1, rest // 2), "float32", kind="app_write")
        out = graph.add_tensor("out", (1, rest // 2), "float32", kind="app_read")
        graph.add_node("Relu", inputs=[more], outputs=[out])
    graph.finalize()


def binary_of(device: htp.Device, mib: float, io_kib: int = 16, name: str = "g") -> bytes:
    """A binary of such a graph."""
    with device.create_context(prepare_only=True) as context:
        add_graph(context, mib, io_kib, name)
        return context.get_binary()


@pytest.fixture(scope="module")
def maker() -> Iterator[htp.Device]:
    backend = htp.Backend()
    yield backend.create_device()
    backend.free()


@pytest.fixture
def device(backend: htp.Backend) -> htp.Device:
    return backend.create_device(domain_mb=DOMAIN_MB, process_domains=2)


def domains_of(device: htp.Device) -> list[dict[str, Any]]:
    (session,) = device.info()["sessions"]
    return session["domains"]


def where(device: htp.Device) -> dict[int, int]:
    """The domain of each context, by number."""
    return {
        context["context"]: domain["domain"]
        for domain in domains_of(device)
        for context in domain["contexts"]
        if context["graphs"]
    }


def test_five_models_are_packed(maker: htp.Device, device: htp.Device) -> None:
    # What a graph needs beside its weights is little, and part of the sizes here.
    for size in (1.5, 1.5, 1.0, 1.0, 0.25):
        device.create_context_from_binary(binary_of(maker, 4 * size - 0.1))
    assert [domain for _, domain in sorted(where(device).items())] == [0, 0, 1, 1, 0]


def test_shared_weights_are_in_each_domain_that_has_their_graphs(maker: htp.Device, device: htp.Device) -> None:
    """Graphs of one context share; contexts in two domains do not, although they have the same binary."""
    with maker.create_context(prepare_only=True, weight_sharing_enabled=True) as context:
        for name in ("a", "b"):
            add_graph(context, 10, name=name)
        binary = context.get_binary()
    contexts = [device.create_context_from_binary(binary) for _ in range(2)]
    assert sorted(where(device).values()) == [0, 1], contexts
    counted = [domain["memory"]["weights"] / MIB for domain in domains_of(device)]
    assert counted == pytest.approx([10, 10], rel=0.01)


def crowd(maker: htp.Device, device: htp.Device, **options: Any) -> Iterator[htp.Context]:
    """Four contexts fit into the first domain and the fifth does not; their buffers have 600 KiB each."""
    for _ in range(5):
        yield device.create_context_from_binary(binary_of(maker, 3.4, 600), **options)


def register_io(context: htp.Context) -> htp.Mem:
    return context.register_memory(600 * KIB)


def test_io_buffer_registration_failure(maker: htp.Device, device: htp.Device) -> None:
    contexts = list(crowd(maker, device))
    assert list(where(device).values()) == [0, 0, 0, 0, 1]
    for context in contexts[:2]:
        register_io(context)
    with pytest.raises(htp.OutOfMemory) as caught:
        register_io(contexts[2])
    assert caught.value.code == 1002
    for said in (
        "the memory needs 600 KiB",
        "process domain 0",
        "of 15 MiB",
        "io_memory_estimation",
        "dummy buffer",
    ):
        assert said in caught.value.message
    register_io(contexts[4])


def test_first_remedy_io_memory_estimation(maker: htp.Device, device: htp.Device) -> None:
    for context in crowd(maker, device, io_memory_estimation=True):
        register_io(context)
    assert list(where(device).values()) == [0, 0, 0, 1, 1]


def test_estimation_holds_for_a_list_too(maker: htp.Device, device: htp.Device) -> None:
    """Nobody can register buffers between two contexts of a list: their room is kept."""
    binaries = [binary_of(maker, 3.4, 600)] * 5
    contexts = device.create_contexts_from_binaries(binaries, io_memory_estimation=True).result()
    for context in contexts:
        register_io(context)
    assert sorted(where(device).values()) == [0, 0, 0, 1, 1]


def test_second_remedy_dummy_buffer(maker: htp.Device, device: htp.Device) -> None:
    making = crowd(maker, device)
    contexts = [next(making), next(making), next(making)]
    dummy = contexts[-1].register_memory(2 * MIB)
    contexts += making
    assert list(where(device).values()) == [0, 0, 0, 1, 1]
    dummy.deregister()
    for context in contexts:
        register_io(context)


def test_third_remedy_list_with_shared_resources(maker: htp.Device, device: htp.Device) -> None:
    binaries = [binary_of(maker, 3.4, 600)] * 5
    contexts = device.create_contexts_from_binaries(binaries, share_resources=True).result()
    assert sorted(where(device).values()) == [0, 0, 0, 1, 1]
    assert [domain["memory"]["reserve"] for domain in domains_of(device)] == [1800 * KIB, 1200 * KIB]
    for context in contexts:
        register_io(context)
    assert [domain["memory"]["reserve"] for domain in domains_of(device)] == [0, 0]


def test_a_context_that_fits_nowhere_is_refused_in_words(maker: htp.Device, device: htp.Device) -> None:
    first = device.create_context_from_binary(binary_of(maker, 8))
    device.create_context_from_binary(binary_of(maker, 9))
    before = device.info()["sessions"][0]["memory"]
    with pytest.raises(htp.OutOfMemory) as caught:
        device.create_context_from_binary(binary_of(maker, 10, name="llm"))
    for said in (
        "(llm) needs 10.03 MiB (weights 10 MiB, VTCM backup 32 KiB)",
        "but no process domain has that: process domain 0 has 6.9",
        "process domain 1",
        "can be 2",
        "memory plan",
    ):
        assert said in caught.value.message
    assert device.info()["sessions"][0]["memory"] == before
    first.free()
    device.create_context_from_binary(binary_of(maker, 10, name="llm"))


def test_graphs_that_are_prepared_here_use_the_first_domain_only(maker: htp.Device, device: htp.Device) -> None:
    device.create_context_from_binary(binary_of(maker, 14.9))
    context = device.create_context()
    context.register_memory(MIB // 100)
    with pytest.raises(htp.OutOfMemory, match="is in process domain 0"):
        context.register_memory(MIB)


def test_domains_end_with_what_was_in_them(maker: htp.Device, device: htp.Device) -> None:
    contexts = [device.create_context_from_binary(binary_of(maker, 10)) for _ in range(2)]
    assert len(domains_of(device)) == 2
    for context in contexts:
        context.free()
    (domain,) = domains_of(device)
    assert domain["bytes"] == 0


def spilling_binary(device: htp.Device, *names: str) -> bytes:
    """Graphs that need a result again later, and make another meanwhile: both are larger than their VTCM."""
    with device.create_context(prepare_only=True) as context:
        for name in names or ("g",):
            graph = context.create_graph(name, precision="float32", vtcm_mb=1)
            shape = (1, 1024, 512)
            x = graph.add_tensor("x", shape, "float32", kind="app_write")
            y = graph.add_tensor("y", shape, "float32", kind="app_read")
            again = graph.add_tensor("again", shape, "float32")
            other = graph.add_tensor("other", shape, "float32")
            graph.add_node("Relu", inputs=[x], outputs=[again])
            graph.add_node("Tanh", inputs=[again], outputs=[other])
            graph.add_node("ElementWiseAdd", inputs=[again, other], outputs=[y])
            graph.finalize()
        return context.get_binary()


def test_contexts_of_a_group_hold_one_spill_fill_buffer(maker: htp.Device, backend: htp.Backend) -> None:
    device = backend.create_device(process_domains=1)
    binary = spilling_binary(maker)

    def spilled() -> int:
        return int(domains_of(device)[0]["memory"]["spill_fill"])

    with device.create_context_from_binary(binary):
        needed = spilled()
        assert needed > 0
        saved = domains_of(device)[0]["memory"]["vtcm_backup"]
        assert 0 < saved <= MIB, "what is in the graph's VTCM"
        with device.create_context_from_binary(binary):
            assert spilled() == 2 * needed
    size = needed + MIB
    first = device.create_context_from_binary(
        binary, register_multi_contexts=htp.GroupRegistration(max_spill_fill_buffer=size)
    )
    joining = htp.GroupRegistration(first=first)
    second = device.create_context_from_binary(binary, register_multi_contexts=joining)
    assert spilled() == size
    assert domains_of(device)[0]["memory"]["vtcm_backup"] == 2 * saved, "each graph has its own"
    first.free()
    assert spilled() == size
    second.free()
    assert spilled() == 0
    with pytest.raises(htp.InvalidArgument, match=f"{needed} bytes, and that of its group has {needed - 1}"):
        device.create_context_from_binary(
            binary, register_multi_contexts=htp.GroupRegistration(max_spill_fill_buffer=needed - 1)
        )
    with pytest.raises(htp.QnnError):
        device.create_context_from_binary(binary, register_multi_contexts=joining)
    assert spilled() == 0


def test_contexts_that_share_while_they_run_have_one_priority(maker: htp.Device, backend: htp.Backend) -> None:
    device = backend.create_device(soc="SM8850")
    binary = spilling_binary(maker)
    begin = htp.GroupRegistration(max_spill_fill_buffer=64 * MIB)
    first = device.create_context_from_binary(binary, priority="high", register_concurrent_resource_sharing=begin)
    joining = htp.GroupRegistration(first=first, max_spill_fill_buffer=64 * MIB)
    with pytest.raises(htp.InvalidArgument, match="all have its priority, 200"):
        device.create_context_from_binary(binary, priority="low", register_concurrent_resource_sharing=joining)
    device.create_context_from_binary(binary, priority="high", register_concurrent_resource_sharing=joining)
    memory = domains_of(device)[0]["memory"]
    assert memory["spill_fill"] == 64 * MIB
    assert memory["vtcm_backup"] == 8 * MIB, "one for the group, as large as the chip's VTCM"
    with pytest.raises(htp.QnnError, match="all have its priority"):
        first.set_config(priority="low")
    with pytest.raises(htp.QnnError, match="all have its priority"):
        first.graph("g").set_config(priority="low")
    with pytest.raises(htp.InvalidArgument, match="began no group"):
        device.create_context_from_binary(binary, register_multi_contexts=htp.GroupRegistration(first=first))


def test_a_group_of_one_context_shares_among_its_graphs(maker: htp.Device, backend: htp.Backend) -> None:
    device = backend.create_device(soc="SM8850", process_domains=1)
    binary = spilling_binary(maker, "first", "second")
    group = htp.GroupRegistration(max_spill_fill_buffer=64 * MIB)
    device.create_context_from_binary(binary, register_concurrent_resource_sharing=group)
    memory = domains_of(device)[0]["memory"]
    assert (memory["spill_fill"], memory["vtcm_backup"]) == (64 * MIB, 8 * MIB)


def test_lists_that_share_resources_have_one_spill_fill_buffer(maker: htp.Device, backend: htp.Backend) -> None:
    device = backend.create_device(process_domains=1)
    kind = "sequential_without_va_optimization"
    binaries = [spilling_binary(maker)] * 3
    device.create_contexts_from_binaries(
        binaries, share_resources=True, share_resources_optimization_type=kind
    ).result()
    shared = domains_of(device)[0]["memory"]
    with htp.Backend() as other:
        alone = other.create_device(process_domains=1)
        alone.create_context_from_binary(binaries[0])
        assert shared["spill_fill"] == domains_of(alone)[0]["memory"]["spill_fill"]
    assert shared["reserve"] == 0, "no room is kept for inputs and outputs"
    with pytest.raises(htp.UnsupportedFeature, match="concurrent_optimization needs a Hexagon v81"):
        device.create_contexts_from_binaries(
            binaries, share_resources=True, share_resources_optimization_type="concurrent_optimization"
        )


def test_a_context_that_only_prepares_executes_nothing(maker: htp.Device) -> None:
    with maker.create_context(prepare_only=True) as context:
        graph = context.create_graph("g")
        x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
        y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
        graph.add_node("Relu", inputs=[x], outputs=[y])
        graph.finalize()
        for call in (graph.execute, graph.execute_async):
            with pytest.raises(htp.WrongState, match="only prepared; its context was made with prepare_only"):
                call({"x": np.zeros((1, 8), "f4")})
        binary = context.get_binary()
    with maker.create_context_from_binary(binary) as restored:
        outputs = restored.graph("g").execute({"x": np.full((1, 8), -1, "f4")})
        np.testing.assert_array_equal(outputs["y"], np.zeros((1, 8), "f4"))


def test_a_context_that_only_prepares_holds_no_memory_for_executions(device: htp.Device) -> None:
    held = []
    for prepare_only in (True, False):
        with device.create_context(prepare_only=prepare_only) as context:
            add_graph(context, 10)
            held.append(sum(domain["bytes"] for domain in domains_of(device)))
    assert held[0] == 0
    assert held[1] > 10 * MIB


def test_weights_are_shared_by_so_many_graphs_at_most(maker: htp.Device) -> None:
    with maker.create_context(weight_sharing_enabled=True) as context:
        for number in range(64):
            context.create_graph(str(number))
        with pytest.raises(htp.UnsupportedFeature, match="one too many: with weight_sharing_enabled 64"):
            context.create_graph("one more")


@pytest.mark.parametrize(
    ("options", "most"),
    [({"dlbc": True}, 32), ({"dlbc_weights": True}, 32), ({"dlbc": True, "dlbc_weights": True}, 16)],
)
def test_compression_limits_the_number_of_graphs(maker: htp.Device, options: dict[str, Any], most: int) -> None:
    with maker.create_context() as context:
        for number in range(most):
            context.create_graph(str(number), **options)
        with pytest.raises(htp.UnsupportedFeature, match=f"one too many: .* {most} can be"):
            context.create_graph("one more", **options)
    context = maker.create_context(weight_sharing_enabled=True)
    with pytest.raises(htp.UnsupportedFeature, match="do not go with weight_sharing_enabled"):
        context.create_graph("g", **options)
    context.free()


def compressed_binary(device: htp.Device, **options: bool) -> bytes:
    with device.create_context(prepare_only=True) as context:
        graph = context.create_graph("g", **options)
        x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
        y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
        graph.add_node("Relu", inputs=[x], outputs=[y])
        graph.finalize()
        return context.get_binary()


@pytest.mark.parametrize("option", ["dlbc", "dlbc_weights"])
def test_compression_does_not_go_with_shared_spill_fill_buffers(
    maker: htp.Device, backend: htp.Backend, option: str
) -> None:
    binary = compressed_binary(maker, **{option: True})
    device = backend.create_device(soc="SM8850")
    group = htp.GroupRegistration(max_spill_fill_buffer=MIB)
    for sharing in ({"register_multi_contexts": group}, {"register_concurrent_resource_sharing": group}):
        with pytest.raises(htp.UnsupportedFeature, match="do not go with shared spill-fill buffers"):
            device.create_context_from_binary(binary, **sharing)
    creation = device.create_contexts_from_binaries([binary], share_resources=True)
    assert isinstance(creation.exception(PATIENCE_S), htp.UnsupportedFeature)
    with device.create_context_from_binary(binary) as context:
        assert context.graph("g").options[option]
    assert domains_of(device)[0]["bytes"] == 0


def test_a_list_that_runs_at_the_same_time_shares_by_priority(maker: htp.Device, backend: htp.Backend) -> None:
    binary = spilling_binary(maker)
    device = backend.create_device(soc="SM8850", process_domains=1)
    with device.create_context_from_binary(binary):
        needed = int(domains_of(device)[0]["memory"]["spill_fill"])
    levels = ["high", "low", "high", "low"]
    device.create_contexts_from_binaries(
        [binary] * 4,
        configs=[{"priority": level} for level in levels],
        share_resources=True,
        share_resources_optimization_type="concurrent_optimization",
    ).result(PATIENCE_S)
    assert domains_of(device)[0]["memory"]["spill_fill"] == 2 * needed
    assert domains_of(device)[0]["memory"]["vtcm_backup"] == 2 * 8 * MIB
