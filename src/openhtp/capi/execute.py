"""Executions, and the steps that make a graph ready for them.

Every inference comes this way, so the findings about a call are kept for the next one like it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from openhtp.abi import memory
from openhtp.abi.memory import BatchedReader, Piece, PresenceProbe
from openhtp.abi.numbers import VERSION_1, VERSION_2, MemoryKind
from openhtp.capi import handles
from openhtp.capi.client_backend import ClientFunction
from openhtp.capi.client_calls import Copier, CutResult, FirstCall, GivenTensor, VaryingCall, given_tensors
from openhtp.capi.context import ContextHeld
from openhtp.capi.entries import answers, bad_handle, null
from openhtp.capi.graph import TENSOR_BYTES, GraphHeld, carried
from openhtp.capi.memories import MemHeld
from openhtp.core import status as st
from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.status import Status
from openhtp.core.telling import warn_once
from openhtp.core.tensor import TensorSpec
from openhtp.runtime.calls.arguments import check_dynamic
from openhtp.runtime.calls.bound_call import BoundCall, copied_call, output_shapes, require_executable
from openhtp.runtime.objects.tensor import Tensor

log = logging.getLogger("openhtp.capi")

_MOST_TENSORS = 4096
_MOST_KEPT = 64
_MOST_BOUND = 16  # each may hold memory for tensors between the graph's steps
_DIM_BYTES = 4
_TYPES = frozenset(DType)

Arrays = dict[str, Any]
# Where a client's input structures are and how many, and its output structures.
Place = tuple[int, int, int, int]
# All that decides which arrays a call means: the number of inputs, the structures, and the dimensions that they
# point at, which a client may change without touching the structures.
CallKey = tuple[int, bytes, bytes]
# All memory that a call depends on, to be looked at in one go; the structures and dimensions that it begins with;
# and the call that serves for as long as they stay the same.
KnownCall = tuple[BatchedReader, bytes, BoundCall | VaryingCall]
ClientCall = BoundCall | VaryingCall | FirstCall


class Plan:
    """The findings about a graph's executions: where clients put their structures, and which arrays those name."""

    def __init__(self, entry: GraphHeld) -> None:
        self.graph = entry.graph
        self._context = entry.context
        self._inputs = {tensor.id: tensor for tensor in entry.graph.inputs}
        self._outputs = {tensor.id: tensor for tensor in entry.graph.outputs}
        self._windows: dict[Place, BatchedReader] = {}
        # One is made ahead for the first call, if that gives all tensors.
        self._counts = len(self._inputs), len(self._outputs)
        pieces = _pieces((0, self._counts[0], 0, self._counts[1]))
        self._made_window = BatchedReader(pieces) if all(self._counts) else None
        self._made_for: dict[None, Place] = {}
        # The last call from each place, and the last with each content of the structures there.
        self._last: dict[Place, KnownCall] = {}
        self._seen: dict[tuple[Place, bytes], KnownCall] = {}
        self._bound: dict[CallKey, tuple[BoundCall | VaryingCall, PresenceProbe]] = {}
        self._varies = any(tensor.spec.is_dynamic for tensor in (*entry.graph.inputs, *entry.graph.outputs))
        # For the first call with some content of the structures: see ``FirstCall``.
        call = copied_call(entry.graph)
        ends = entry.graph.inputs, entry.graph.outputs
        self._copier = Copier(call, *ends) if call is not None and Copier.takes([*ends[0], *ends[1]]) else None
        self._firsts: dict[tuple[int, bytes], FirstCall] = {}

    def call(self, inputs: int, n_inputs: int, outputs: int, n_outputs: int) -> ClientCall:
        """The graph on the arrays that a client's structures name."""
        location = (inputs, n_inputs, outputs, n_outputs)
        last = self._last.get(location)
        if last is not None and last[0].begins_with(last[1]):
            return last[2]
        window = self._windows.get(location)
        if window is None:
            window = self._window(location)
        structs = window.read("the tensors of an execution")
        seen = self._seen.get((location, structs))
        if seen is None or not seen[0].begins_with(seen[1]):
            return self._read_call(location, structs)
        self._last[location] = seen
        return seen[2]

    def _read_call(self, location: Place, structs: bytes) -> ClientCall:
        """Find out which arrays structures mean, with what they point at now.

        Work from which only later calls gain does not delay the first call on these arrays.
        """
        copier = self._copier
        if copier is not None:
            first = self._firsts.get((location[1], structs))
            if first is None:
                copies = copier.copies(location[1], given_tensors(structs), self._data)
                if copies is not None:
                    if len(self._firsts) >= _MOST_KEPT:
                        self._firsts.clear()
                    first = FirstCall(copier.call, copies, lambda: self._known_call(location, structs))
                    self._firsts[location[1], structs] = first
            if first is not None and first.times_left:
                first.times_left -= 1
                return first
        return self._known_call(location, structs)

    def _known_call(self, location: Place, structs: bytes) -> BoundCall | VaryingCall:
        """Arrays on what the structures name, as they come again and again."""
        given = given_tensors(structs)
        dims = self._dims_window(location[1], given)
        key = (location[1], structs, dims.read("the dimensions of an execution's tensors"))
        known = self._bound.get(key)
        if known is None or not known[1].holds():
            return self._bind(key, given)
        if len(self._seen) >= _MOST_KEPT:
            self._seen.clear()
        read = (*_pieces(location), *dims.places())
        whole = BatchedReader((*read, *known[1].places_beside(read)))
        self._last[location] = self._seen[location, structs] = (whole, structs + key[2], known[0])
        return known[0]

    def _window(self, location: Place) -> BatchedReader:
        inputs, n_inputs, outputs, n_outputs = location
        for what, address, count in (("inputs", inputs, n_inputs), ("outputs", outputs, n_outputs)):
            none_at_all = what == "inputs" and not address and not count
            if count > _MOST_TENSORS or not ((address and count) or none_at_all):
                where = f"at {address:#x}" if address else "at NULL"
                raise InvalidArgument(f"{what}: {count} tensors {where}; expected 1 to {_MOST_TENSORS}")
        if len(self._windows) >= _MOST_KEPT:
            self._windows.clear()
            self._last.clear()
        made = self._made_window if (n_inputs, n_outputs) == self._counts else None
        # One of several first calls gets it, as this is one step.
        if made is not None and self._made_for.setdefault(None, location) is location:
            self._made_window = None
            made.aim((inputs, outputs))
        else:
            made = BatchedReader(_pieces(location))
        self._windows[location] = made
        return made

    def _dims_window(self, n_inputs: int, structs: list[GivenTensor]) -> BatchedReader:
        """The dimensions that structures point at, as far as they are looked at."""
        pieces: list[Piece] = []
        for number, tensor_struct in enumerate(structs):
            is_input = number < n_inputs
            tensor = (self._inputs if is_input else self._outputs).get(tensor_struct.id)
            if tensor is None or (tensor.spec.is_dynamic and not is_input):
                continue  # the earlier dimensions of a varying output are overwritten
            if _has_dims(tensor_struct, tensor.spec):
                pieces.append((tensor_struct.dims, _DIM_BYTES * tensor_struct.rank))
        return BatchedReader(pieces)

    def _bind(self, key: CallKey, structs: list[GivenTensor]) -> BoundCall | VaryingCall:
        """``structs`` are those of the key."""
        n_inputs, _, shapes = key
        dims = iter(memoryview(shapes).cast("I"))
        read: list[Piece] = []
        written: list[Piece] = []
        ins = self._read(structs[:n_inputs], dims, read)
        result_shapes = (
            output_shapes(self.graph, {name: array.shape for name, array in ins.items()}) if self._varies else {}
        )
        outs, cut = self._written(structs[n_inputs:], dims, written, result_shapes)
        probe = PresenceProbe(read, written)
        if not probe.holds():
            raise _bad("a tensor's data are not this process's memory")
        if not probe.can_be_written():
            raise InvalidArgument(
                f"one of {len(written)} outputs has its data in memory that cannot be written to"
            )
        bound = BoundCall(self.graph, ins or None, outs)
        call: BoundCall | VaryingCall = bound
        if self._varies:
            call = VaryingCall(bound, self._size_targets(structs[n_inputs:], result_shapes), cut)
        if len(self._bound) >= _MOST_BOUND:
            self._last.clear()
            self._seen.clear()
            self._bound.pop(next(iter(self._bound)))
        self._bound[key] = (call, probe)
        return call

    def _read(self, structs: list[GivenTensor], dims: Iterator[int], pieces: list[Piece]) -> Arrays:
        """Arrays on the inputs that structures name."""
        arrays: Arrays = {}
        for tensor_struct, tensor in _sorted_out(structs, self._inputs, "input"):
            _check_elements(tensor_struct, tensor.spec)
            shape = _shape(tensor_struct, tensor.spec, dims)
            nbytes = _nbytes(tensor.spec, shape)
            address, size = self._data(tensor_struct, tensor)
            if size < nbytes:
                raise _too_short(tensor, size, address, nbytes)
            arrays[tensor.name] = _array(address, tensor.spec, shape)
            pieces.append((address, nbytes))
        return arrays

    def _written(
        self,
        structs: list[GivenTensor],
        dims: Iterator[int],
        pieces: list[Piece],
        result_shapes: dict[str, tuple[int, ...]],
    ) -> tuple[Arrays, list[CutResult]]:
        """Arrays on the outputs that structures name, and results that are too large for their memory.

        ``result_shapes`` has the shapes of results that vary.
        """
        arrays: Arrays = {}
        cut: list[CutResult] = []
        for tensor_struct, tensor in _sorted_out(structs, self._outputs, "output"):
            varies = tensor.spec.is_dynamic
            if varies:
                _require_dims(tensor_struct, tensor.spec)
            shape = result_shapes[tensor.name] if varies else _shape(tensor_struct, tensor.spec, dims)
            nbytes = _nbytes(tensor.spec, shape)
            address, size = self._data(tensor_struct, tensor)
            if size < nbytes and not (varies and size):
                raise _too_short(tensor, size, address, nbytes)
            if size < nbytes:
                whole = arrays[tensor.name] = np.empty(shape, tensor.dtype.numpy)
                cut.append(CutResult(tensor.name, whole, address, size))
            else:
                arrays[tensor.name] = _array(address, tensor.spec, shape)
            pieces.append((address, min(size, nbytes)))
        return arrays, cut

    def _size_targets(
        self, structs: list[GivenTensor], result_shapes: dict[str, tuple[int, ...]]
    ) -> list[tuple[int, bytes]]:
        """Where the sizes of varying results go, and what they are."""
        targets = [(tensor_struct.dims, self._outputs[tensor_struct.id]) for tensor_struct in structs]
        return [
            (address, np.array(result_shapes[tensor.name], np.uint32).tobytes())
            for address, tensor in targets
            if tensor.spec.is_dynamic
        ]

    def _data(self, tensor_struct: GivenTensor, tensor: Tensor) -> Piece:
        """The address of a tensor's data, and how many bytes there are."""
        self._warn_of_another_type(tensor_struct, tensor)
        if tensor_struct.mem_type == MemoryKind.HANDLE:
            # An execution has no code of its own for memory: the tensor is the wrong one.
            mem = handles.find(MemHeld, tensor_struct.data, st.QNN_GRAPH_ERROR_INVALID_TENSOR)
            if mem.parent is not self._context or mem.area.mem.use:
                raise bad_handle("memory of this context's tensors", st.QNN_GRAPH_ERROR_INVALID_TENSOR, mem.handle)
            address, size = mem.place
        elif tensor_struct.mem_type == MemoryKind.RAW:
            address, size = tensor_struct.data, tensor_struct.size
        else:
            raise _bad(
                f"tensor {tensor.name!r} has memory type {tensor_struct.mem_type}; expected raw (0) or handle (1)"
            )
        if not address and tensor.spec.nbytes:
            raise _too_short(tensor, 0, address, tensor.spec.nbytes)
        return address, size

    def _warn_of_another_type(self, tensor_struct: GivenTensor, tensor: Tensor) -> None:
        """Data count in the type of the tensor's creation. A number that is no type says nothing."""
        said = tensor_struct.data_type
        if said != tensor.dtype and said in _TYPES:
            warn_once(
                log,
                ("data type", self.graph.name, tensor.name),
                f"graph {self.graph.name!r}: an execution gives tensor {tensor.name!r} as {DType(said).qnn_name};"
                f" it was created as {tensor.dtype.qnn_name}, and its data count as that",
            )


def _pieces(location: Place) -> tuple[Piece, Piece]:
    inputs, n_inputs, outputs, n_outputs = location
    return (inputs, n_inputs * TENSOR_BYTES), (outputs, n_outputs * TENSOR_BYTES)


def _has_dims(tensor_struct: GivenTensor, spec: TensorSpec) -> bool:
    """Whether a client's tensor says how large it is; those of another rank are not looked at."""
    return bool(spec.rank and tensor_struct.rank == spec.rank and tensor_struct.dims)


def _sorted_out(
    structs: list[GivenTensor], wanted: dict[int, Tensor], what: str
) -> Iterator[tuple[GivenTensor, Tensor]]:
    """Each structure with the tensor that it names; refuses other versions, unknown tensors and the same again."""
    seen: set[int] = set()
    for tensor_struct in structs:
        if tensor_struct.version not in (VERSION_1, VERSION_2):
            raise _bad(f"an {what} tensor has version {tensor_struct.version}; expected 1 or 2")
        tensor = wanted.get(tensor_struct.id)
        if tensor is None or tensor_struct.id in seen:
            problem = "is given twice" if tensor is not None else f"is no {what} of the graph"
            raise _bad(f"{what} tensor {tensor_struct.id} {problem}; expected ids {sorted(wanted)}")
        seen.add(tensor_struct.id)
        yield tensor_struct, tensor


def _shape(tensor_struct: GivenTensor, spec: TensorSpec, dims: Iterator[int]) -> tuple[int, ...]:
    """The size that a client's tensor has in this execution; ``dims`` are those that were read, in turn.

    Whether a size is a multiple of the graph's, and the same for all tensors, is checked with the arguments.
    """
    if spec.is_dynamic:
        _require_dims(tensor_struct, spec)
    if not _has_dims(tensor_struct, spec):
        return spec.shape
    said = tuple(itertools.islice(dims, tensor_struct.rank))
    if spec.is_dynamic:
        check_dynamic(spec, said)
    return said


def _require_dims(tensor_struct: GivenTensor, spec: TensorSpec) -> None:
    if not _has_dims(tensor_struct, spec):
        where = f"{tensor_struct.rank} of them" if tensor_struct.dims else "NULL"
        raise _bad(
            f"tensor {spec} has dimensions that vary, and a call gives {where}; expected {spec.rank}",
            st.QNN_GRAPH_ERROR_DYNAMIC_TENSOR_SHAPE,
        )


def _check_elements(tensor_struct: GivenTensor, spec: TensorSpec) -> None:
    """Check a client's description of a sparse tensor; its elements are counted in every execution."""
    most = spec.sparse_elements
    if most is not None and tensor_struct.version == VERSION_2 and tensor_struct.elements > most:
        raise _bad(
            f"tensor {spec} is given with {tensor_struct.elements} specified elements; at most {most} fit",
            st.QNN_GRAPH_ERROR_TENSOR_SPARSITY,
        )


def _nbytes(spec: TensorSpec, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * spec.dtype.itemsize


def _array(address: int, spec: TensorSpec, shape: tuple[int, ...]) -> Any:
    nbytes = _nbytes(spec, shape)
    if not nbytes:
        return np.empty(shape, spec.dtype.numpy)  # wherever that is
    return np.ndarray(shape, spec.dtype.numpy, memory.view(address, nbytes))


def _too_short(tensor: Tensor, size: int, address: int, nbytes: int) -> InvalidArgument:
    return _bad(f"tensor {tensor.name!r} has {size} bytes at {address:#x}; expected {nbytes} for {tensor.spec}")


def _bad(message: str, status: Status = st.QNN_GRAPH_ERROR_INVALID_TENSOR) -> InvalidArgument:
    return InvalidArgument(message, status)


def _plan(entry: GraphHeld) -> Plan:
    """Return the plan of a graph that can be executed: the graph's ports are not known before."""
    require_executable(entry.graph)
    plan = entry.plan = Plan(entry)
    return plan


def _make_ready(entry: GraphHeld) -> None:
    """Make the plan now, so that the first execution does not wait for it. An execution reports what is wrong."""
    with contextlib.suppress(QnnError):
        _plan(entry)


@answers("graphFinalize")
def graph_finalize(graph: int, profile: int, signal: int) -> None:
    """Compile and load a graph; afterwards it can be executed."""
    entry = handles.find(GraphHeld, graph)
    filled, until = carried(profile, signal)
    entry.graph.finalize(profile=filled, signal=until)
    entry.statics.clear()
    entry.context.binary = None
    _make_ready(entry)


@answers("graphRetrieve")
def graph_retrieve(context: int, name: int, out: int) -> None:
    """The graph of this name."""
    entry = handles.find(ContextHeld, context)
    handles.require_place(out, "graph")
    if not name:
        raise null("the graph's name")
    graph = entry.context.graph(memory.text(name, "the graph's name"))
    for child in entry.children.values():
        if isinstance(child, GraphHeld) and child.graph is graph:
            memory.write_number(out, child.handle)
            return
    held = GraphHeld(entry, graph)
    handles.give(out, held)
    _make_ready(held)


@answers("graphExecute")
def graph_execute(
    graph: int, inputs: int, n_inputs: int, outputs: int, n_outputs: int, profile: int, signal: int
) -> None:
    """Run once and wait for it."""
    entry = handles.find(GraphHeld, graph)
    call = (entry.plan or _plan(entry)).call(inputs, n_inputs, outputs, n_outputs)
    if not profile and not signal:
        call.run()
        return
    call.run(*carried(profile, signal))


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
    """Queue an execution; the client is notified when it is over."""
    entry = handles.find(GraphHeld, graph)
    call = (entry.plan or _plan(entry)).call(inputs, n_inputs, outputs, n_outputs)
    profile_and_signal = carried(profile, signal)
    if notify:
        memory.check_code(notify, "the notify function")
    call.run_async(ClientFunction(notify, param) if notify else None, *profile_and_signal)
