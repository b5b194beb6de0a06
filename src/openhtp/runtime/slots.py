"""Shared slots for raw tensors: memory registered once that plain arrays are copied into and out of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from openhtp.core.tensor import TensorSpec, batched
from openhtp.rpc import frames
from openhtp.rpc.shm import SharedBuffer, align

# A new piece of memory holds as many slots as there are already, up to this.
_MAX_SLOTS_AT_ONCE = 32


class Slot:
    """Room for every input and output of one execution."""

    __slots__ = ("arrays", "memory", "offsets", "packed")

    def __init__(self, memory: int, offsets: list[int], arrays: list[npt.NDArray[Any]]) -> None:
        self.memory = memory
        self.offsets = offsets
        self.arrays = arrays
        # The bindings of a call in which all tensors are raw and of full size.
        self.packed = frames.pack_bindings(
            [frames.Binding(port, memory, offset) for port, offset in enumerate(offsets)]
        )


class SlotPool:
    """Slots of one graph (and batch multiple); grows to the number in flight, which the queue depth bounds."""

    def __init__(self, ports: list[TensorSpec], batch: int, register: Callable[[SharedBuffer], int]) -> None:
        self._ports = ports
        self._batch = batch
        self._register = register
        self._free: list[Slot] = []
        self._made = 0
        self._lock = threading.Lock()
        self._offsets: list[int] = []
        end = 0
        for spec in ports:
            self._offsets.append(end)
            end = align(end + spec.nbytes * batch)
        self._slot_bytes = max(end, 1)

    def take(self) -> Slot:
        """A slot that nobody uses."""
        with self._lock:
            if not self._free:
                self._grow()
            return self._free.pop()

    def give_back(self, slot: Slot) -> None:
        """The execution is over and its outputs have been copied."""
        with self._lock:
            self._free.append(slot)

    def _grow(self) -> None:
        count = min(max(1, self._made), _MAX_SLOTS_AT_ONCE)
        buffer = SharedBuffer.create(self._slot_bytes * count)
        try:
            memory = self._register(buffer)
        except BaseException:
            buffer.close()
            raise
        for index in range(count):
            start = index * self._slot_bytes
            offsets = [start + offset for offset in self._offsets]
            arrays = [
                buffer.array(offset, batched(spec.shape, self._batch), spec.dtype.numpy)
                for spec, offset in zip(self._ports, offsets, strict=True)
            ]
            self._free.append(Slot(memory, offsets, arrays))
        self._made += count
