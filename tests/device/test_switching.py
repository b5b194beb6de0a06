"""Graph switching on a live device: the document's cases, memory that goes down, and what can go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.core.units import MIB
from openhtp.runtime.objects.profile_events import GRAPH_SWITCH
from tests.waiting import PATIENCE_S

WIDE = 512
SWITCHING = {"is_persistent_binary": True, "memory_limit_hint": 1}


def factor_of(name: str) -> float:
    return 1.0 + "ABCD".index(name)


def weights_of(name: str, mib: float) -> np.ndarray:
    """Rows with the sum of so many equal numbers each. No two are equal, as equal parts are kept once."""
    rows = int(mib * MIB) // 4 // WIDE
    weights = np.full((rows, WIDE), factor_of(name), np.float32)
    weights[:, :2] += np.outer(np.arange(rows) / 64, [1, -1])
    return weights


def make_binary(device: htp.Device, mib: float) -> bytes:
    """Graphs A, B, C and D of equal size; each multiplies the sum of its input by a number of its own."""
    with device.create_context(prepare_only=True) as context:
        for name in "ABCD":
            data = weights_of(name, mib)
            graph = context.create_graph(name, precision="float32")
            x = graph.add_tensor("x", (1, WIDE), "float32", kind="app_write")
            y = graph.add_tensor("y", (1, len(data)), "float32", kind="app_read")
            w = graph.add_tensor("w", data.shape, "float32", data=data)
            graph.add_node("FullyConnected", inputs=[x, w], outputs=[y])
            graph.finalize()
        return context.get_binary()


def run(context: htp.Context, name: str, **options: Any) -> None:
    """Execute a graph and look at what came out."""
    outputs = context.graph(name).execute({"x": np.ones((1, WIDE), "f4")}, **options)
    np.testing.assert_allclose(outputs["y"], WIDE * factor_of(name))


def loaded(device: htp.Device) -> str:
    """Names of the graphs that are loaded."""
    (session,) = device.info()["sessions"]
    contexts = [context for domain in session["domains"] for context in domain["contexts"]]
    return "".join(sorted(graph["graph"] for c in contexts for graph in c["graphs"] if graph["loaded"]))


@pytest.fixture(scope="module")
def binary() -> Iterator[bytes]:
    with htp.Backend() as backend:
        yield make_binary(backend.create_device(), 1)


@pytest.fixture
def device(backend: htp.Backend) -> htp.Device:
    """Two of the graphs fit, and their inputs and outputs."""
    return backend.create_device(domain_mb=3, process_domains=1)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("ABAB", ["AB", "AB", "AB", "AB"]),
        ("ABCD", ["AB", "AB", "AC", "AD"]),
        ("ABCABD", ["AB", "AB", "AC", "AC", "AB", "AD"]),
    ],
    ids=["case 1", "case 2", "case 3"],
)
def test_retention_cases_of_the_document(
    device: htp.Device, binary: bytes, order: str, expected: list[str]
) -> None:
    context = device.create_context_from_binary(binary, graph_retention_order=["A", "B"], **SWITCHING)
    assert loaded(device) == "AB"
    seen = []
    for name in order:
        run(context, name)
        seen.append(loaded(device))
    assert seen == expected


def test_without_retention_one_graph_is_loaded(device: htp.Device, binary: bytes) -> None:
    context = device.create_context_from_binary(binary, enable_graphs=["C", "A", "B"], **SWITCHING)
    assert loaded(device) == "C"
    for name in "CABCA":
        run(context, name)
        assert loaded(device) == name
    with pytest.raises(htp.WrongState, match="disabled"):
        run(context, "D")
    context.free()
    (session,) = device.info()["sessions"]
    assert session["bytes"] == 0


def test_without_names_the_first_graph_of_the_binary_is_loaded(device: htp.Device, binary: bytes) -> None:
    context = device.create_context_from_binary(binary, **SWITCHING)
    assert loaded(device) == "A"
    run(context, "D")
    assert loaded(device) == "D"


def test_an_empty_retention_order_is_plain_switching(device: htp.Device, binary: bytes) -> None:
    context = device.create_context_from_binary(binary, graph_retention_order=[], **SWITCHING)
    assert loaded(device) == "A"
    for name in "BCB":
        run(context, name)
        assert loaded(device) == name


@pytest.mark.parametrize("hint", [1, 2, 10_000, 1 << 40])
def test_any_hint_above_zero_means_the_same(device: htp.Device, binary: bytes, hint: int) -> None:
    switching = {"is_persistent_binary": True, "memory_limit_hint": hint}
    context = device.create_context_from_binary(binary, graph_retention_order=["A", "B"], **switching)
    seen = []
    for name in "ABCD":
        run(context, name)
        seen.append(loaded(device))
    assert seen == ["AB", "AB", "AC", "AD"]


def test_all_four_do_not_fit_without_switching(device: htp.Device, binary: bytes) -> None:
    with pytest.raises(htp.OutOfMemory, match="memory_limit_hint"):
        device.create_context_from_binary(binary)
    # Retention without the hint is no switching, as the document has it.
    with pytest.raises(htp.OutOfMemory):
        device.create_context_from_binary(binary, graph_retention_order=["A"])


def test_graphs_to_retain_must_be_enabled_and_fit(device: htp.Device, binary: bytes) -> None:
    with pytest.raises(
        htp.InvalidArgument, match="graph_retention_order names 'B'; graphs that are enabled are 'A'"
    ):
        device.create_context_from_binary(binary, enable_graphs=["A"], graph_retention_order=["B"], **SWITCHING)
    with pytest.raises(htp.OutOfMemory):
        device.create_context_from_binary(binary, graph_retention_order=["A", "B", "C", "D"], **SWITCHING)
    assert device.info()["sessions"][0]["bytes"] == 0


def test_queued_executions_are_served_in_order_and_none_beside_another(device: htp.Device, binary: bytes) -> None:
    context = device.create_context_from_binary(
        binary, queue_depth=40, graph_retention_order=["A", "B"], **SWITCHING
    )
    ended: list[str] = []
    device.start_trace()
    names = "ABBACDDABCA" * 2
    pending = [
        context.graph(name).execute_async(
            {"x": np.ones((1, WIDE), "f4")}, notify=lambda name, _: ended.append(name), notify_param=name
        )
        for name in names
    ]
    for name, execution in zip(names, pending, strict=True):
        np.testing.assert_allclose(execution.result(PATIENCE_S)["y"], WIDE * factor_of(name))
    trace = device.stop_trace()
    context.free()
    context.device.backend.free()
    assert "".join(ended) == names
    running = 0
    for record in trace.records:
        kind = type(record).__name__
        running += (kind == "Granted") - (kind == "Released")
        assert running <= 1


def test_a_switch_is_in_the_profile(backend: htp.Backend, device: htp.Device, binary: bytes) -> None:
    context = device.create_context_from_binary(binary, **SWITCHING)
    profile = backend.create_profile("basic")
    run(context, "A", profile=profile)
    assert profile.event(GRAPH_SWITCH) is None
    run(context, "B", profile=profile)
    switch = profile.event(GRAPH_SWITCH)
    assert switch is not None
    assert switch.value > 0
    queued = profile.event(405)
    assert queued is not None
    assert queued.value >= switch.value


def test_what_waits_for_its_turn_can_be_cancelled_and_times_out(
    backend: htp.Backend, device: htp.Device, binary: bytes
) -> None:
    context = device.create_context_from_binary(binary, **SWITCHING)
    inputs = {"x": np.ones((1, WIDE), "f4")}
    htp.testing.hold(device)
    running = context.graph("A").execute_async(inputs)
    late = context.graph("B").execute_async(inputs, signal=backend.create_signal(timeout_us=1000))
    gone = context.graph("C").execute_async(inputs)
    gone.cancel()
    with pytest.raises(htp.Aborted):
        gone.result(PATIENCE_S)
    with pytest.raises(htp.TimedOut):
        late.result(PATIENCE_S)
    htp.testing.release(device)
    running.result(PATIENCE_S)
    run(context, "D")
    assert loaded(device) == "D"


def test_a_context_that_is_freed_takes_its_executions_with_it(device: htp.Device, binary: bytes) -> None:
    context = device.create_context_from_binary(binary, queue_depth=20, **SWITCHING)
    pending = [context.graph(name).execute_async({"x": np.ones((1, WIDE), "f4")}) for name in "ABCD" * 4]
    context.free()
    for execution in pending:
        assert execution.exception(PATIENCE_S) is None or execution.exception(PATIENCE_S).name.endswith(
            "INVALID_CONTEXT"
        )
    again = device.create_context_from_binary(binary, **SWITCHING)
    run(again, "B")


def test_a_damaged_graph_fails_alone(device: htp.Device, binary: bytes, tmp_path: Path) -> None:
    """Its data is looked at when it is loaded; then its execution fails, and others go on."""
    parts = bytearray(binary)
    middle = binary.index(np.float32(3.0).tobytes() * 64)
    parts[middle] ^= 1
    path = tmp_path / "damaged.bin"
    path.write_bytes(parts)
    context = device.create_context_from_binary(path, **SWITCHING)
    run(context, "A")
    with pytest.raises(htp.QnnError, match="damaged"):
        run(context, "C")
    run(context, "B")
    run(context, "A")


def test_in_process_devices_switch_too(backend: htp.Backend, binary: bytes) -> None:
    device = backend.create_device(domain_mb=3, process_domains=1, transport="inprocess")
    context = device.create_context_from_binary(binary, graph_retention_order=["A", "B"], **SWITCHING)
    for name in "ABCABD":
        run(context, name)
    assert loaded(device) == "AD"


def resident(pid: int) -> int:
    """Bytes that a process has to itself or as its part of what is shared."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss")


def test_memory_of_the_device_process_goes_down(backend: htp.Backend, tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    with htp.Backend() as other:
        path.write_bytes(make_binary(other.create_device(), 24))
    device = backend.create_device()
    nothing = resident(device.pid)
    everything = device.create_context_from_binary(path)
    for name in "ABCD":
        run(everything, name)
    all_loaded = resident(device.pid) - nothing
    everything.free()
    switched = device.create_context_from_binary(path, **SWITCHING)
    for name in "ABCDAB":
        run(switched, name)
    one_loaded = resident(device.pid) - nothing
    assert one_loaded < all_loaded - 2 * 24 * MIB, (one_loaded / MIB, all_loaded / MIB)


def memory_of(device: htp.Device) -> dict[str, int]:
    (session,) = device.info()["sessions"]
    return dict(session["memory"])


def test_graphs_that_stay_take_more_memory_than_plain_switching(device: htp.Device, binary: bytes) -> None:
    held = {}
    for names in ([], ["A", "B"]):
        with device.create_context_from_binary(binary, graph_retention_order=names, **SWITCHING) as context:
            run(context, "A")
            held[len(names)] = memory_of(device)["weights"]
    assert held[2] == 2 * held[0] > 0


def test_buffers_are_held_for_as_long_as_the_context_lives(backend: htp.Backend, binary: bytes) -> None:
    """So that a graph that is to be loaded finds room, whatever was registered meanwhile."""
    device = backend.create_device(domain_mb=3, process_domains=1)
    context = device.create_context_from_binary(binary, weights_buffer=2 * MIB, **SWITCHING)
    for name in "ABCD":
        run(context, name)
        assert memory_of(device)["weights"] == 2 * MIB
    context.register_memory(MIB // 2)
    run(context, "A")
    context.free()
    assert device.info()["sessions"][0]["bytes"] == 0
    exact = device.create_context_from_binary(binary, weights_buffer=-1, spill_fill_buffer=-1, **SWITCHING)
    assert MIB <= memory_of(device)["weights"] <= MIB + 64 * 1024
    run(exact, "B")


def test_buffers_of_no_bytes_are_none(backend: htp.Backend, binary: bytes) -> None:
    """What is held then is what the loaded graph needs."""
    held = []
    for options in ({}, {"weights_buffer": 0, "spill_fill_buffer": 0}):
        device = backend.create_device(domain_mb=3, process_domains=1)
        context = device.create_context_from_binary(binary, **options, **SWITCHING)
        run(context, "B")
        held.append(memory_of(device))
    assert held[0] == held[1]
    assert held[0]["weights"] < 2 * MIB


def test_buffers_that_are_too_small_or_do_not_fit_are_refused(device: htp.Device, binary: bytes) -> None:
    with pytest.raises(htp.InvalidArgument, match="weights_buffer is 4096 bytes; graph 'A' needs 10") as caught:
        device.create_context_from_binary(binary, weights_buffer=4096, **SWITCHING)
    assert caught.value.name == "QNN_CONTEXT_ERROR_INVALID_CONFIG"
    with pytest.raises(htp.OutOfMemory):
        device.create_context_from_binary(binary, weights_buffer=16 * MIB, **SWITCHING)
    assert device.info()["sessions"][0]["bytes"] == 0


def test_a_switched_context_can_be_saved_again(device: htp.Device, binary: bytes) -> None:
    """Also graphs of it that are not loaded now."""
    with device.create_context_from_binary(binary, **SWITCHING) as context:
        run(context, "B")
        again = context.get_binary()
    with device.create_context_from_binary(again, graph_retention_order=["D"], **SWITCHING) as context:
        assert loaded(device) == "D"
        for name in "ABCD":
            run(context, name)


def test_names_of_graphs_that_are_not_there(device: htp.Device, binary: bytes) -> None:
    with pytest.raises(htp.InvalidArgument, match="enable_graphs names 'E'; the binary has 'A', 'B'"):
        device.create_context_from_binary(binary, enable_graphs=["A", "E"], **SWITCHING)
    with pytest.raises(htp.InvalidArgument, match="graph_retention_order names 'E'"):
        device.create_context_from_binary(binary, graph_retention_order=["A", "E"], **SWITCHING)
    with pytest.raises(htp.InvalidArgument, match="graph_retention_order names 'B' twice"):
        device.create_context_from_binary(binary, graph_retention_order=["B", "A", "B"], **SWITCHING)
