"""What a graph knows about the memory that its calls use: checked arguments, packed bindings, raw-data slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from openhtp.core.locks import make_lock
from openhtp.rpc import frames
from openhtp.runtime.calls.arguments import Arguments, Ports, Shape, Values, check_arguments, check_sparse
from openhtp.runtime.calls.slots import SlotPool

if TYPE_CHECKING:
    from openhtp.runtime.objects.mem import ContextMemory

# Kept per graph; a client that uses new memory for every call must not grow without end.
_MOST_KEPT = 512


class Bindings:
    """Caches of a finalized graph. Programs use the same memory over and over, so most calls are look-ups."""

    def __init__(
        self, memory: ContextMemory, ports: Ports, infer_dims: Callable[[dict[str, Shape]], dict[str, Shape]]
    ) -> None:
        self._memory = memory
        self._ports = ports
        self._infer_dims = infer_dims
        self._checked: dict[tuple[object, ...], Arguments] = {}
        self._packed: dict[tuple[tuple[int, int, int], ...], bytes] = {}
        self._pools: dict[int, SlotPool] = {}
        self._forgotten = 0
        self._lock = make_lock("bindings")

    def arguments(self, inputs: Values | None, outputs: Values | None) -> Arguments:
        """Check what a caller passed; the same arrays on registered memory need it only once."""
        found = self._arguments(inputs, outputs)
        if self._ports.sparse:
            check_sparse(self._ports, found)
        return found

    def output_shapes(self, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
        """Sizes of all outputs in an execution whose inputs have these."""
        specs = self._ports.specs[: self._ports.inputs]
        return self._infer_dims(
            {spec.name: inputs[spec.name] for spec in specs if spec.is_dynamic and spec.name in inputs}
        )

    def _arguments(self, inputs: Values | None, outputs: Values | None) -> Arguments:
        key: tuple[object, ...] | None = None
        known = None
        if type(inputs) is dict and type(outputs) is dict:
            # Ids are safe as keys: what is kept here holds on to the arrays that they belong to.
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
                if forgotten == self._forgotten:  # else memory was moved while we looked at it
                    self._checked[key] = arguments
        return arguments

    def pack(self, key: tuple[tuple[int, int, int], ...]) -> bytes:
        """The bindings (port, memory, offset) of a call as they go into its frame."""
        packed = self._packed.get(key)
        if packed is None:
            packed = frames.pack_bindings([frames.Binding(*item) for item in key])
            with self._lock:
                if len(self._packed) >= _MOST_KEPT:
                    self._packed.clear()
                self._packed[key] = packed
        return packed

    def slot_pool(self, batch: int) -> SlotPool:
        """Slots for raw data of this batch multiple."""
        with self._lock:
            pool = self._pools.get(batch)
            if pool is None:
                pool = self._pools[batch] = SlotPool(self._ports.specs, batch, self._memory.allocate)
            return pool

    def close(self) -> None:
        """The context is over: let go of all memory. A call under way holds what it needs itself."""
        self.forget_memory()
        with self._lock:
            self._pools.clear()

    def forget_memory(self) -> None:
        """Memory was taken back: what was found out about it no longer holds."""
        with self._lock:
            self._forgotten += 1
            self._packed.clear()
            self._checked.clear()
