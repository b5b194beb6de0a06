"""Shared slots for raw tensors: memory registered once that plain arrays are copied into and out of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from openhtp.core.locks import make_lock
from openhtp.core.tensor import TensorSpec, batched
from openhtp.rpc import frames
from openhtp.rpc.shm import SharedBuffer, align

# A new piece of memory holds as many slots as there are already, up to this.
_MAX_SLOTS_AT_ONCE = 32


class Slot:
    """Room for every input and output of one execution."""

    __slots__ = ("arrays", "holder", "memory", "offsets", "packed")

    def __init__(self, memory: int, offsets: list[int], arrays: list[npt.NDArray[Any]]) -> None:
        self.memory = memory
        self.offsets = offsets
        self.arrays = arrays
        # Whoever uses it now; None if it is free.
        self.holder: object = None
        # The bindings of a call in which all tensors are raw and of full size.
        self.packed = frames.pack_bindings(
            [frames.Binding(port, memory, offset) for port, offset in enumerate(offsets)]
        )


class SlotPool:
    """Slots of one graph (and batch multiple); grows to the number in flight, which the queue depth bounds."""

    def __init__(
        self, ports: list[TensorSpec], batch: int, allocate: Callable[[int], tuple[SharedBuffer, int]]
    ) -> None:
        self._ports = ports
        self._batch = batch
        self._allocate = allocate
        self._slots: list[Slot] = []
        self._free: list[Slot] = []
        self._growing = make_lock("growth")
        self._lock = make_lock("slots")
        self._offsets: list[int] = []
        end = 0
        for spec in ports:
            self._offsets.append(end)
            end = align(end + spec.nbytes * batch)
        self._slot_bytes = max(end, 1)

    def take(self, holder: object) -> Slot:
        """A slot that nobody uses."""
        slot = self._try_take(holder)
        while slot is None:
            with self._growing:
                slot = self._try_take(holder)
                if slot is None:
                    # Not under the lock that completions need: they may come on the thread that is asked.
                    self._grow()
        return slot

    def give_back(self, holder: object, slot: Slot | None) -> None:
        """The execution is over and its outputs have been copied. Twice does nothing.

        Without a slot, all that the holder has: it was interrupted while it took one.
        """
        with self._lock:
            for item in self._slots if slot is None else (slot,):
                if item.holder is holder:
                    item.holder = None
                    self._free.append(item)

    def _try_take(self, holder: object) -> Slot | None:
        with self._lock:
            if not self._free:
                return None
            slot = self._free[-1]
            slot.holder = holder
            self._free.pop()
            return slot

    def _grow(self) -> None:
        with self._lock:
            self._free = [slot for slot in self._slots if slot.holder is None]
            if self._free:  # left behind where an earlier growth was interrupted, or given back just now
                return
        count = min(max(1, len(self._slots)), _MAX_SLOTS_AT_ONCE)
        buffer, memory = self._allocate(self._slot_bytes * count)
        new = []
        for index in range(count):
            start = index * self._slot_bytes
            offsets = [start + offset for offset in self._offsets]
            arrays = [
                buffer.array(offset, batched(spec.shape, self._batch), spec.dtype.numpy)
                for spec, offset in zip(self._ports, offsets, strict=True)
            ]
            new.append(Slot(memory, offsets, arrays))
        with self._lock:
            self._slots.extend(new)
            self._free.extend(new)
