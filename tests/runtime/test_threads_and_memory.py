"""Several threads on one object, and memory that goes back at once."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import openhtp as htp
from openhtp.rpc import messages as ms, rendezvous, windows
from openhtp.rpc.shm import SharedBuffer
from openhtp.runtime.objects.mem import ContextMemory
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def unfinalized(context: htp.Context, name: str = "g", **options: object) -> htp.Graph:
    graph = context.create_graph(name, **options)  # type: ignore[arg-type]
    graph.add_tensor("x", (1, 8), "float32", kind="app_write")
    graph.add_tensor("y", (1, 8), "float32", kind="app_read")
    graph.add_node("Relu", inputs=["x"], outputs=["y"])
    return graph


def _refused_binary(device: htp.Device, binary: bytes) -> None:
    with pytest.raises(htp.BadBinary):
        device.create_context_from_binary(binary[:-1])


def _refused_memory(device: htp.Device, binary: bytes) -> None:
    with device.create_context() as context, pytest.raises(htp.OutOfMemory):
        context.register_memory(4 << 30)


def _failed_finalize(device: htp.Device, binary: bytes) -> None:
    context = device.create_context()
    with pytest.raises(htp.OutOfMemory):
        unfinalized(context, vtcm_mb=64).finalize()
    context.free()


def _freed_context(device: htp.Device, binary: bytes) -> None:
    context = device.create_context()
    graph = relu_graph(context)
    memory = context.register_memory(256)
    x, y = memory.array("x"), memory.array("y")
    graph.execute({"x": x}, {"y": y})
    graph.execute({"x": memory}, {"y": memory})
    graph.execute({"x": ramp()})
    graph.execute_async({"x": ramp()}).result(PATIENCE_S)
    context.free()


def _deregistered(device: htp.Device, binary: bytes) -> None:
    with device.create_context() as context:
        graph = relu_graph(context)
        graph.execute({"x": ramp()})
        before = descriptors()
        memory = context.register_memory(256)
        graph.execute({"x": memory.array("x")}, {"y": memory.array("y")})
        memory.deregister()
        assert descriptors() == before


def _restored(device: htp.Device, binary: bytes) -> None:
    with device.create_context_from_binary(binary) as context:
        context.graph("g").execute({"x": ramp()})
        context.get_binary()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    "use", [_refused_binary, _refused_memory, _failed_finalize, _freed_context, _deregistered, _restored]
)
def test_nothing_waits_for_the_garbage_collector(
    shared_device: htp.Device, use: Callable[[htp.Device, bytes], None]
) -> None:
    with shared_device.create_context() as context:
        relu_graph(context)
        binary = context.get_binary()
    use(shared_device, binary)  # whatever is opened once for all
    before = descriptors()
    for _ in range(5):
        use(shared_device, binary)
    assert descriptors() == before


def test_one_of_several_threads_finalizes(shared_device: htp.Device, context: htp.Context) -> None:
    def loaded() -> int:
        return sum(len(session["graphs"]) for session in shared_device.info()["sessions"])

    graph, before = unfinalized(context), loaded()
    start = threading.Barrier(3)
    outcomes: list[str] = []

    def finalize() -> None:
        start.wait()
        try:
            graph.finalize()
            outcomes.append("finalized")
        except htp.QnnError as error:
            outcomes.append(error.name)

    threads = [threading.Thread(target=finalize) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(outcomes) == ["QNN_GRAPH_ERROR_GRAPH_FINALIZED"] * 2 + ["finalized"]
    assert loaded() == before + 1
    graph.execute({"x": ramp()})


def test_a_failed_finalize_leaves_the_graph_as_it_was(
    context: htp.Context, shared_backend: htp.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, profile = unfinalized(context), shared_backend.create_profile()

    def refuse(*arguments: object) -> None:
        raise htp.OutOfMemory("no room")

    with monkeypatch.context() as patch:
        patch.setattr("openhtp.runtime.objects.graph.load_graphs", refuse)
        with pytest.raises(htp.OutOfMemory):
            graph.finalize(profile=profile)
    graph.add_tensor("z", (1,), "float32")
    graph.finalize(profile=profile)
    assert profile.event(300) is not None
    graph.execute({"x": ramp()})


def test_a_binary_is_made_while_graphs_are_added(context: htp.Context) -> None:
    graph = relu_graph(context)
    real, stop = context.opened.link.fetch, threading.Event()

    def adding(message: ms.Request) -> bytes:
        for index in range(20):  # what another thread may do at the worst moment
            context.create_graph(f"{stop.is_set()}{index}")
        stop.set()
        return real(message)

    context.opened.link.fetch = adding  # type: ignore[method-assign]
    try:
        binary = context.get_binary()
    finally:
        del context.opened.link.fetch
    with context.device.create_context_from_binary(binary) as restored:
        assert list(restored.graphs) == [graph.name]


def test_the_priority_of_a_restored_context(shared_device: htp.Device, graph: htp.Graph) -> None:
    binary = graph.context.get_binary()
    for level in htp.Priority:
        with shared_device.create_context_from_binary(binary, priority=level) as restored:
            assert restored.priority is level
            assert restored.graph("g").priority is level


@pytest.mark.parametrize(
    "shape", ["12", b"ab", (1.9, 2), (float("inf"),), {1, 2}, {1: 2}, range(9), 5, (None,)], ids=str
)
def test_shapes_are_whole_numbers(context: htp.Context, shape: object) -> None:
    with pytest.raises(htp.InvalidArgument, match="shape of tensor 'x'"):
        context.create_graph("g").add_tensor("x", shape, "float32")  # type: ignore[arg-type]


def test_a_folder_for_sockets_may_have_a_long_name(
    backend: htp.Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(htp.InvalidArgument, match="device name"):
        backend.create_device(name="x" * 300)
    monkeypatch.delenv("OPENHTP_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("d" * 120)))
    name = "c" * 64
    with htp.Backend() as other:
        assert other.create_device(name=name).pid == backend.create_device(name=name).pid
        assert [seen["name"] for seen in windows.look()] == [name]
    monkeypatch.setattr(rendezvous, "_OPEN_FILES", tmp_path / "nothing")
    with pytest.raises(htp.ResourceError, match=r"d{120}.*OPENHTP_RUNTIME_DIR"):
        backend.create_device(name="camera")


@pytest.mark.parametrize("wanted", ["registered", "the runtime's own"])
def test_memory_that_is_granted_while_the_context_goes_is_given_back(
    backend: htp.Backend, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    """On another thread, say: the device grants it, and the context is freed before anybody has it."""
    context = backend.create_device().create_context()
    graph = relu_graph(context)
    granted = ContextMemory.ask_for

    def free_meanwhile(memories: ContextMemory, buffer: SharedBuffer, use: str = "") -> int:
        number = granted(memories, buffer, use)
        context.free()
        return number

    monkeypatch.setattr(ContextMemory, "ask_for", free_meanwhile)
    before = descriptors()
    ask = {
        "registered": lambda: context.register_memory(4096),
        "the runtime's own": lambda: graph.execute_async({"x": ramp()}),
    }
    with pytest.raises(htp.InvalidHandle, match="freed"):
        ask[wanted]()
    gc.collect()
    assert descriptors() <= before
