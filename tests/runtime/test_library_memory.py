"""Registered memory and signals of a library that has both: our own stands in for that of a board."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.core.errors import QnnError
from openhtp.core.latches import Latch
from openhtp.device.library_target import Interruption, LibraryAbilities, LibraryRun, RunMemory
from openhtp.engine.protocol import SharedRange
from openhtp.rpc.shm import DmaHeap, RpcmemHeap, SharedBuffer, find_heap
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S

LIBRARIES = Path(htp.__file__).parent / "capi/lib"
# Allocates memfds, as a board's FastRPC library allocates memory that the DSP can map.
RPC_LIBRARY = LIBRARIES / "rpcmem/libcdsprpc.so"

pytestmark = pytest.mark.skipif(not RPC_LIBRARY.is_file(), reason="the C libraries were not built")


@pytest.fixture
def device() -> Iterator[htp.Device]:
    with htp.Backend(library=LIBRARIES / "libQnnHtp.so") as backend:
        yield backend.create_device()


def abilities(device: htp.Device) -> dict[str, Any]:
    seen: Any = device.info()["abilities"]
    return dict(seen)


def test_tensors_of_a_call_are_registered_and_used_where_they_lie(device: htp.Device) -> None:
    context = device.create_context()
    graph = relu_graph(context)
    memory = context.register_memory(4096)
    x, y = memory.array("x"), memory.array("y", offset=2048)
    for number in range(3):
        x[:] = ramp() - number
        graph.execute({"x": x}, {"y": y})
        np.testing.assert_array_equal(y, np.maximum(x, 0))
    # Once each, however often they are used.
    assert abilities(device)["tensors_registered"] == 2
    assert not abilities(device)["memory_refusal"]


def test_arrays_and_batches_are_registered_too(device: htp.Device) -> None:
    graph = relu_graph(device.create_context())
    values = ramp((3, 8))
    np.testing.assert_array_equal(graph.execute({"x": values})["y"], np.maximum(values, 0))
    assert abilities(device)["tensors_registered"] == 6


def test_memory_that_was_taken_back_can_be_registered_again(device: htp.Device) -> None:
    context = device.create_context()
    graph = relu_graph(context)
    for _ in range(3):
        memory = context.register_memory(4096)
        x, y = memory.array("x"), memory.array("y")
        x[:] = ramp()
        graph.execute({"x": x}, {"y": y})
        np.testing.assert_array_equal(y, np.maximum(ramp(), 0))
        memory.deregister()
    context.free()
    graph = relu_graph(device.create_context())
    np.testing.assert_array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))


def test_memory_comes_from_the_heap_of_the_board(device: htp.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.heap is None or device.heap.name  # a board has one
    heap = find_heap(str(RPC_LIBRARY))
    assert isinstance(heap, RpcmemHeap)
    sizes: list[int] = []
    allocate = heap.allocate
    monkeypatch.setattr(heap, "allocate", lambda nbytes: (sizes.append(nbytes), allocate(nbytes))[1])
    monkeypatch.setattr(device, "heap", heap)
    context = device.create_context()
    graph = relu_graph(context)
    memory = context.register_memory(4096)
    memory.array("x")[:] = ramp()
    result = graph.execute({"x": memory.array("x")})["y"]
    np.testing.assert_array_equal(result, np.maximum(ramp(), 0))
    assert sizes[0] == 4096
    assert len(sizes) == 2  # and one for the output, which is no array of ours
    assert abilities(device)["tensors_registered"] == 2


def test_a_heap_with_nothing_left_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    heap = RpcmemHeap(ctypes.CDLL(str(RPC_LIBRARY)))
    assert heap.allocate(1 << 31) is None
    buffer = SharedBuffer.for_device(1 << 12, DmaHeap("/dev/null"))  # which is no heap
    assert buffer.nbytes == 1 << 12
    buffer.close()


def test_a_kernels_heap_is_asked_in_its_own_words(tmp_path: Path) -> None:
    heap = tmp_path / "system"
    heap.touch()
    given = os.open(heap, os.O_RDONLY)

    def ioctl(fd: int, number: int, request: bytearray) -> None:
        assert number == 0xC0184800
        assert int.from_bytes(request[:8], "little") == 8192
        assert int.from_bytes(request[12:16], "little") == os.O_RDWR | os.O_CLOEXEC
        request[8:12] = given.to_bytes(4, "little")

    assert DmaHeap(str(heap), ioctl).allocate(8192) == given
    os.close(given)
    found = find_heap("no-such-library.so", [str(tmp_path / "none"), str(heap)])
    assert found is not None
    assert found.name == str(heap)
    assert find_heap("no-such-library.so", []) is None


def long_graph(context: htp.Context, layers: int = 60) -> htp.Graph:
    graph = context.create_graph("long")
    shape, encoding = (1, 64, 64, 128), htp.ScaleOffset(0.5, -128)
    weights = np.random.default_rng(0).integers(0, 255, (3, 3, 128, 128), dtype=np.uint8)
    before = graph.add_tensor("x", shape, "ufixed8", quant=encoding, kind="app_write")
    for number in range(layers):
        kind = "app_read" if number == layers - 1 else "native"
        after = graph.add_tensor(f"y{number}", shape, "ufixed8", quant=encoding, kind=kind)
        static = graph.add_tensor(
            f"w{number}", weights.shape, "ufixed8", quant=htp.ScaleOffset(0.01, -128), data=weights
        )
        params = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}
        graph.add_node("Conv2d", inputs=[before, static], outputs=[after], params=params)
        before = after
    graph.finalize()
    return graph


@pytest.mark.slow
def test_a_running_execution_is_ended_by_abort_and_by_timeout(device: htp.Device) -> None:
    graph = long_graph(device.create_context())
    values = {"x": np.full((1, 64, 64, 128), 130, np.uint8)}
    whole = graph.execute(values)
    begun = graph.execute_async(values, signal=device.backend.create_signal(timeout_us=20_000))
    assert isinstance(begun.exception(PATIENCE_S), htp.TimedOut)
    abort = device.backend.create_signal()
    begun = graph.execute_async(values, signal=abort)
    abort.trigger()
    assert isinstance(begun.exception(PATIENCE_S), htp.Aborted)
    # The next one is whole again.
    np.testing.assert_array_equal(graph.execute(values)["y59"], whole["y59"])


class StandingGraph:
    """A graph of a library whose executions last until they are aborted."""

    inputs = outputs = ()

    def __init__(self) -> None:
        self.context = self
        self.device = self
        self.backend = self
        self.library = self
        self.handle = 1
        self._children: list[object] = []
        self.triggers: list[int] = []
        self.signals = 0
        self.aborted = Latch()

    # The library

    def make(self, name: str, *arguments: object) -> int:
        assert name == "signalCreate"
        self.signals += 1
        return self.signals

    def ask(self, name: str, handle: int) -> int:
        # It has not begun with the execution when the first triggers come.
        self.triggers.append(handle)
        if len(self.triggers) < 3:
            return 9001
        self.aborted.unlock()
        return 0

    def call(self, name: str, *arguments: object, where: str = "") -> None:
        assert name == "signalFree"

    # The graph

    def execute(self, inputs: object, **how: Any) -> None:
        assert self.aborted.wait(PATIENCE_S)
        raise htp.Aborted("aborted")


def test_a_run_that_was_stopped_before_it_began_does_not_begin() -> None:
    graph: Any = StandingGraph()
    seen = LibraryAbilities()
    run = LibraryRun(graph, {}, RunMemory(graph, {}, seen), Interruption(seen))
    run.stop()
    run.step(0)
    assert (graph.signals, graph.triggers) == (0, [])


def test_an_execution_that_is_stopped_ends_without_an_error() -> None:
    graph: Any = StandingGraph()
    seen = LibraryAbilities()
    run = LibraryRun(graph, {}, RunMemory(graph, {}, seen), Interruption(seen))
    execute = graph.execute

    def stopped(inputs: object, **how: Any) -> None:
        run.stop()
        execute(inputs, **how)

    graph.execute = stopped
    run.step(0)
    assert graph.triggers == [1, 1, 1]


def test_memory_that_the_library_refuses_is_given_by_its_address() -> None:
    class Refusing(StandingGraph):
        inputs = (htp.TensorSpec("x", (8,), htp.DType.FLOAT_32),)  # type: ignore[assignment]

        def register_memory(self, spec: object, whole: object) -> None:
            raise QnnError("memory that cannot be mapped")

    seen = LibraryAbilities()
    buffer = SharedBuffer.create(4096)
    graph: Any = Refusing()
    memory = RunMemory(graph, {"x": SharedRange(buffer.fd, 4096, 0)}, seen)
    assert memory.register({"x": np.zeros(8, np.float32)}) == {}
    assert (seen.memory_refusal, seen.no_memory) == ("memory that cannot be mapped", False)
    buffer.close()
