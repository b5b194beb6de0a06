"""The called side: everything that the calls of a finalized graph need of it, of its context and of its memory.

Programs use the same memory over and over, so a graph keeps the results of checking it (``Bindings``). Plain
arrays are copied into and out of slots of shared memory that was registered once (``SlotPool``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.errors import UnsupportedFeature
from openhtp.core.locks import Lock, make_lock
from openhtp.core.tensor import TensorSpec, batched
from openhtp.rpc import frames
from openhtp.rpc.shm import SharedBuffer, align
from openhtp.runtime.calls.arguments import Arguments, Ports, Shape, Values, check_arguments, check_sparse

if TYPE_CHECKING:
    from openhtp.runtime.calls.call import Call
    from openhtp.runtime.calls.notify import Notifier
    from openhtp.runtime.calls.queue import Places
    from openhtp.runtime.links.link import Link
    from openhtp.runtime.objects.mem import ContextMemory
    from openhtp.runtime.objects.modelled import Modelled


# Kept per graph. Without a limit, a client that uses new memory for every call would grow without end.
_MOST_KEPT = 512
# A new piece of memory holds as many slots as the pool has already, up to this many.
_MAX_SLOTS_AT_ONCE = 32


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Callee:
    """A finalized graph as its calls see it, and the calls that are under way.

    ``number`` is the graph's number on the device, ``places`` the queue of its context, ``modelled`` the figures
    that profiles give for it on the chip.
    """

    name: str
    number: int
    ports: Ports
    bindings: Bindings
    hvx_threads: int
    places: Places
    link: Link
    notifier: Notifier
    modelled: Modelled | None
    is_new: bool = field(default=True, init=False)  # whether no arrays were bound to it yet
    _lock: Lock = field(default_factory=lambda: make_lock("graph"), init=False)
    # By ``synchronous``.
    _under_way: dict[bool, set[Call]] = field(default_factory=lambda: {True: set(), False: set()}, init=False)

    def begin_call(self, call: Call) -> None:
        """Note an execution under way; the two ways of executing one graph exclude each other."""
        synchronous = call.synchronous
        with self._lock:
            if self._under_way[not synchronous]:
                other = "asynchronous" if synchronous else "synchronous"
                raise UnsupportedFeature(
                    f"graph {self.name!r} has {other} executions under way; executing one graph both ways at the"
                    " same time is not supported",
                    st.QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE,
                )
            self._under_way[synchronous].add(call)

    def end_call(self, call: Call) -> None:
        """The call is over; twice does nothing."""
        self._under_way[call.synchronous].discard(call)

    def end_calls(self, calls: Collection[Call]) -> None:
        """Asynchronous calls are over."""
        self._under_way[False].difference_update(calls)

    def calls_queued(self) -> set[Call]:
        """Asynchronous calls that were accepted and are not over."""
        return self._under_way[False].copy()

    def calls_under_way(self) -> set[Call]:
        """Calls that were accepted and are not over."""
        return self._under_way[True] | self._under_way[False]


class Bindings:
    """Checked arguments and slots of a finalized graph: most calls are look-ups."""

    def __init__(
        self, memory: ContextMemory, ports: Ports, infer_dims: Callable[[dict[str, Shape]], dict[str, Shape]]
    ) -> None:
        self._memory = memory
        self._ports = ports
        self._infer_dims = infer_dims
        self._checked: dict[tuple[object, ...], Arguments] = {}
        self._pools: dict[int, SlotPool] = {}
        self._forgotten = 0
        self._lock = make_lock("bindings")

    def arguments(self, inputs: Values | None, outputs: Values | None) -> Arguments:
        """Check the arguments of a call; the same arrays on registered memory are checked only once."""
        arguments = self._arguments(inputs, outputs)
        if self._ports.sparse:
            check_sparse(self._ports, arguments)
        return arguments

    def output_shapes(self, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
        """Sizes of all outputs in an execution with inputs of these sizes."""
        specs = self._ports.specs[: self._ports.inputs]
        return self._infer_dims(
            {spec.name: inputs[spec.name] for spec in specs if spec.is_dynamic and spec.name in inputs}
        )

    def _arguments(self, inputs: Values | None, outputs: Values | None) -> Arguments:
        key: tuple[object, ...] | None = None
        known = None
        if type(inputs) is dict and type(outputs) is dict:
            # Ids are safe as keys: the kept arguments hold on to the arrays that the ids belong to.
            key = (*inputs, *map(id, inputs.values()), *outputs, *map(id, outputs.values()))
            known = self._checked.get(key)
        if known is not None and known.still_hold():
            return known
        forgotten = self._forgotten
        arguments = check_arguments(self._ports, self._memory, inputs, outputs, self._infer_dims)
        if key is not None and not arguments.raw_count:
            with self._lock:
                if len(self._checked) >= _MOST_KEPT:
                    self._checked.clear()
                if forgotten == self._forgotten:  # otherwise memory was moved meanwhile
                    self._checked[key] = arguments
        return arguments

    def slot_pool(self, batch: int) -> SlotPool:
        """Slots for raw data of this batch multiple."""
        with self._lock:
            pool = self._pools.get(batch)
            if pool is None:
                pool = self._pools[batch] = SlotPool(self._ports.specs, batch, self._memory.allocate)
            return pool

    def close(self) -> None:
        """Release all memory, because the context has ended. A call under way keeps the memory it needs."""
        self.forget_memory()
        with self._lock:
            self._pools.clear()

    def forget_memory(self) -> None:
        """Memory was deregistered: checks of it no longer hold."""
        with self._lock:
            self._forgotten += 1
            self._checked.clear()


class Slot:
    """Room for every input and output of one execution."""

    __slots__ = ("arrays", "holder", "memory", "offsets", "packed")

    def __init__(self, memory: int, offsets: list[int], arrays: list[npt.NDArray[Any]]) -> None:
        self.memory = memory
        self.offsets = offsets
        self.arrays = arrays
        # The call that uses it now; None if it is free.
        self.holder: object = None
        # The bindings of a call in which all tensors are raw and of full size.
        self.packed = frames.pack_bindings(
            [frames.Binding(port, memory, offset) for port, offset in enumerate(offsets)]
        )


class SlotPool:
    """Slots of one graph and batch multiple. Grows with the calls in flight, up to the queue depth."""

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
                    # Not under the lock that completions need: they may come on the thread that allocates.
                    self._grow()
        return slot

    def give_back(self, holder: object, slot: Slot | None) -> None:
        """The execution is over and its outputs have been copied. Twice does nothing.

        Without a slot, everything that the holder has: it was interrupted while it took one.
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
            if self._free:  # left behind by an interrupted growth, or given back just now
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
