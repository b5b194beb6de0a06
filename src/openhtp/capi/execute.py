"""Executions. The way of every inference, so what is found out about a call is kept for the next one like it."""

from __future__ import annotations

import ctypes
import itertools
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np

from openhtp.abi import memory
from openhtp.abi.memory import Probe, Window
from openhtp.abi.numbers import MemoryKind
from openhtp.abi.structs import struct
from openhtp.capi import handles
from openhtp.capi.entries import answers, bad_handle
from openhtp.capi.graph import TENSOR_BYTES, GraphHeld
from openhtp.capi.memories import MemHeld
from openhtp.capi.profile import ProfileHeld
from openhtp.capi.signals import SignalHeld
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument
from openhtp.core.status import Status
from openhtp.core.tensor import TensorSpec, batched
from openhtp.runtime.bound_call import BoundCall
from openhtp.runtime.tensor import Tensor

log = logging.getLogger("openhtp.capi")

_MOST_TENSORS = 4096
_MOST_KEPT = 64
_MOST_BOUND = 16  # each may hold memory for what is between the graph's steps
_MOST_BATCH = 4096
_DIM_BYTES = 4
_NOTIFY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)

Arrays = dict[str, Any]
# Where a client's input structures are and how many, and its output structures.
Place = tuple[int, int, int, int]
# All that decides which arrays a call means: the number of inputs, the structures, and the dimensions that they
# point at, which a client may change without touching the structures.
CallKey = tuple[int, bytes, bytes]
# All memory that a call depends on, to be looked at in one go; the structures and dimensions that it begins with;
# and what is to be done for as long as it does.
KnownCall = tuple[Window, bytes, BoundCall]


class Plan:
    """What is known of a graph's executions: where clients put their structures, and which arrays those name."""

    def __init__(self, held: GraphHeld) -> None:
        self.graph = held.graph
        self._context = held.context
        self._inputs = {tensor.id: tensor for tensor in held.graph.inputs}
        self._outputs = {tensor.id: tensor for tensor in held.graph.outputs}
        self._windows: dict[Place, Window] = {}
        # The last call from each place, and the last with each content of the structures there.
        self._last: dict[Place, KnownCall] = {}
        self._seen: dict[tuple[Place, bytes], KnownCall] = {}
        self._bound: dict[CallKey, tuple[BoundCall, Probe]] = {}

    def call(self, inputs: int, n_inputs: int, outputs: int, n_outputs: int) -> BoundCall:
        """The graph on the arrays that a client's structures name."""
        place = (inputs, n_inputs, outputs, n_outputs)
        last = self._last.get(place)
        if last is not None and last[0].begins_with(last[1]):
            return last[2]
        window = self._windows.get(place)
        if window is None:
            window = self._window(place)
        structs = window.read("the tensors of an execution")
        seen = self._seen.get((place, structs))
        if seen is None or not seen[0].begins_with(seen[1]):
            seen = self._look(place, structs)
        if structs:
            self._last[place] = seen
        return seen[2]

    def _look(self, place: Place, structs: bytes) -> KnownCall:
        """Find out which arrays structures mean, with what they point at now."""
        dims = self._dims_window(place[1], structs)
        key = (place[1], structs, dims.read("the dimensions of an execution's tensors"))
        known = self._bound.get(key)
        if known is None or not known[1].holds():
            known = self._bind(key)
        if len(self._seen) >= _MOST_KEPT:
            self._seen.clear()
        read = (*_pieces(place), *dims.places())
        whole = Window((*read, *known[1].places_beside(read)))
        seen = self._seen[place, structs] = (whole, structs + key[2], known[0])
        return seen

    def _window(self, place: Place) -> Window:
        inputs, n_inputs, outputs, n_outputs = place
        for what, address, count in (("inputs", inputs, n_inputs), ("outputs", outputs, n_outputs)):
            if count > _MOST_TENSORS or (count and not address):
                raise InvalidArgument(f"{what}: {count} tensors at {address:#x}; expected at most {_MOST_TENSORS}")
        if len(self._windows) >= _MOST_KEPT:
            self._windows.clear()
            self._last.clear()
        window = self._windows[place] = Window(_pieces(place))
        return window

    def _dims_window(self, n_inputs: int, structs: bytes) -> Window:
        """The dimensions that structures point at, as far as they are looked at."""
        pieces: list[tuple[int, int]] = []
        for number, given in enumerate(_tensors(structs)):
            tensor = (self._inputs if number < n_inputs else self._outputs).get(given.id)
            if tensor is not None and _has_dims(given, tensor.spec):
                pieces.append((given.dims, _DIM_BYTES * given.rank))
        return Window(pieces)

    def _bind(self, key: CallKey) -> tuple[BoundCall, Probe]:
        n_inputs, held, shapes = key
        structs = _tensors(held)
        dims = iter(np.frombuffer(shapes, np.uint32).tolist())
        pieces: list[tuple[int, int]] = []
        ins = self._side(structs[:n_inputs], self._inputs, "input", dims, pieces)
        outs = self._side(structs[n_inputs:], self._outputs, "output", dims, pieces)
        probe = Probe(pieces)
        if not probe.holds():
            raise InvalidArgument(
                "a tensor's data are not this process's memory", st.QNN_GRAPH_ERROR_INVALID_TENSOR
            )
        for address, size in pieces[len(ins) :]:
            for place in (address, address + size - 1) if size else ():
                memory.check_writable(place, 1, "an output's data")
        known = (BoundCall(self.graph, ins or None, outs or None), probe)
        if len(self._bound) >= _MOST_BOUND:
            self._last.clear()
            self._seen.clear()
            self._bound.pop(next(iter(self._bound)))
        self._bound[key] = known
        return known

    def _side(
        self,
        structs: Any,
        wanted: dict[int, Tensor],
        what: str,
        dims: Iterator[int],
        pieces: list[tuple[int, int]],
    ) -> Arrays:
        found: Arrays = {}
        for given in structs:
            tensor = wanted.get(given.id)
            if tensor is None or tensor.name in found:
                problem = "is given twice" if tensor is not None else f"is no {what} of the graph"
                raise _bad(f"{what} tensor {given.id} {problem}; expected ids {sorted(wanted)}")
            has_dims = _has_dims(given, tensor.spec)
            batch = _batch(tuple(itertools.islice(dims, given.rank)), tensor.spec) if has_dims else 1
            nbytes = tensor.spec.nbytes * batch
            address = self._data(given, tensor, nbytes)
            shape = batched(tensor.spec.shape, batch)
            raw: Any = (ctypes.c_uint8 * max(1, nbytes)).from_address(address or ctypes.addressof(_nothing))
            found[tensor.name] = np.frombuffer(raw, tensor.dtype.numpy, int(np.prod(shape))).reshape(shape)
            pieces.append((address, nbytes))
        return found

    def _data(self, given: Any, tensor: Tensor, nbytes: int) -> int:
        """The address of a tensor's data, of which there must be enough."""
        if given.mem_type == MemoryKind.HANDLE:
            mem = handles.find(MemHeld, given.buffer.data or 0)
            if mem.parent is not self._context:
                raise bad_handle("memory of this context", st.QNN_MEM_ERROR_INVALID_HANDLE, mem.handle)
            address, size = mem.place
        elif given.mem_type == MemoryKind.RAW:
            address, size = given.buffer.data or 0, given.buffer.size
        else:
            raise _bad(f"tensor {tensor.name!r} has memory type {given.mem_type}; expected raw (0) or handle (1)")
        if size < nbytes or (nbytes and not address):
            raise _bad(
                f"tensor {tensor.name!r} has {size} bytes at {address:#x}; expected {nbytes} for {tensor.spec}"
            )
        return address


def _pieces(place: Place) -> tuple[tuple[int, int], tuple[int, int]]:
    inputs, n_inputs, outputs, n_outputs = place
    return (inputs, n_inputs * TENSOR_BYTES), (outputs, n_outputs * TENSOR_BYTES)


_nothing = ctypes.c_uint64()


def _tensors(structs: bytes) -> Any:
    return (struct("Tensor") * (len(structs) // TENSOR_BYTES)).from_buffer_copy(structs)


def _has_dims(given: Any, spec: TensorSpec) -> bool:
    """Whether a client's tensor says how large it is; those of another rank are not looked at."""
    return bool(spec.rank and given.rank == spec.rank and given.dims)


def _batch(dims: tuple[int, ...], spec: TensorSpec) -> int:
    """How many times the graph's batch a client's tensor holds."""
    if dims[1:] != spec.shape[1:] or not spec.shape[0] or dims[0] % spec.shape[0] or not dims[0]:
        if dims == spec.shape:
            return 1
        raise _bad(f"tensor {spec.name!r} has dimensions {list(dims)}; expected {list(spec.shape)}")
    batch = dims[0] // spec.shape[0]
    if batch > _MOST_BATCH:
        raise _bad(
            f"tensor {spec.name!r} has a batch of {batch} times the graph's; expected at most {_MOST_BATCH}"
        )
    return int(batch)


def _bad(message: str, status: Status = st.QNN_GRAPH_ERROR_INVALID_TENSOR) -> InvalidArgument:
    return InvalidArgument(message, status)


@answers("graphExecute")
def graph_execute(
    graph: int, inputs: int, n_inputs: int, outputs: int, n_outputs: int, profile: int, signal: int
) -> None:
    """Run once and wait for it."""
    held = handles.find(GraphHeld, graph)
    plan = held.plan
    if plan is None:
        plan = held.plan = Plan(held)
    call = plan.call(inputs, n_inputs, outputs, n_outputs)
    if not profile and not signal:
        call.run()
        return
    sheet, cut = handles.find_or_none(ProfileHeld, profile), handles.find_or_none(SignalHeld, signal)
    call.run(None if sheet is None else sheet.profile, None if cut is None else cut.signal)


@answers("graphExecuteAsync")
def graph_execute_async(
    graph: int,
    inputs: int,
    n_inputs: int,
    outputs: int,
    n_outputs: int,
    profile: int,
    signal: int,
    notify: int,
    param: int,
) -> None:
    """Queue an execution; the client is told when it is over."""
    held = handles.find(GraphHeld, graph)
    plan = held.plan
    if plan is None:
        plan = held.plan = Plan(held)
    call = plan.call(inputs, n_inputs, outputs, n_outputs)
    sheet, cut = handles.find_or_none(ProfileHeld, profile), handles.find_or_none(SignalHeld, signal)
    if notify:
        memory.check_code(notify, "the notify function")
    call.run_async(
        _teller(_NOTIFY(notify), param) if notify else None,
        None if sheet is None else sheet.profile,
        None if cut is None else cut.signal,
    )


def _teller(call: Any, param: int) -> Any:
    def tell(_: object, status: Any) -> None:
        call(param, status.code if hasattr(status, "code") else int(status))

    return tell
