"""Executions. Every inference comes this way, so the findings about a call are kept for the next one like it."""

from __future__ import annotations

import ctypes
import itertools
import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from openhtp.abi import memory
from openhtp.abi.memory import BatchedReader, PresenceProbe
from openhtp.abi.numbers import VERSION_1, VERSION_2, MemoryKind
from openhtp.abi.structs import struct
from openhtp.capi import handles
from openhtp.capi.client_backend import ClientFunction
from openhtp.capi.entries import answers, bad_handle
from openhtp.capi.graph import TENSOR_BYTES, GraphHeld, carried
from openhtp.capi.memories import MemHeld
from openhtp.capi.varying_call import CutResult, VaryingCall
from openhtp.core import status as st
from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument
from openhtp.core.status import Status
from openhtp.core.telling import warn_once
from openhtp.core.tensor import TensorSpec
from openhtp.runtime.calls.arguments import check_dynamic
from openhtp.runtime.calls.bound_call import BoundCall, output_shapes, require_executable
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
# and the bound call that serves for as long as they stay the same.
ClientCall = BoundCall | VaryingCall
KnownCall = tuple[BatchedReader, bytes, ClientCall]


class Plan:
    """The findings about a graph's executions: where clients put their structures, and which arrays those name."""

    def __init__(self, entry: GraphHeld) -> None:
        self.graph = entry.graph
        self._context = entry.context
        self._inputs = {tensor.id: tensor for tensor in entry.graph.inputs}
        self._outputs = {tensor.id: tensor for tensor in entry.graph.outputs}
        self._windows: dict[Place, BatchedReader] = {}
        # The last call from each place, and the last with each content of the structures there.
        self._last: dict[Place, KnownCall] = {}
        self._seen: dict[tuple[Place, bytes], KnownCall] = {}
        self._bound: dict[CallKey, tuple[ClientCall, PresenceProbe]] = {}
        self._varies = any(tensor.spec.is_dynamic for tensor in (*entry.graph.inputs, *entry.graph.outputs))

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
        dims = self._dims_window(location[1], structs)
        key = (location[1], structs, dims.read("the dimensions of an execution's tensors"))
        known = self._bound.get(key)
        if known is None or not known[1].holds():
            return self._bind(key)[0]
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
        window = self._windows[location] = BatchedReader(_pieces(location))
        return window

    def _dims_window(self, n_inputs: int, structs: bytes) -> BatchedReader:
        """The dimensions that structures point at, as far as they are looked at."""
        pieces: list[tuple[int, int]] = []
        for number, tensor_struct in enumerate(_tensors(structs)):
            is_input = number < n_inputs
            tensor = (self._inputs if is_input else self._outputs).get(tensor_struct.id)
            if tensor is None or (tensor.spec.is_dynamic and not is_input):
                continue  # the earlier dimensions of a varying output are overwritten
            if _has_dims(tensor_struct, tensor.spec):
                pieces.append((tensor_struct.dims, _DIM_BYTES * tensor_struct.rank))
        return BatchedReader(pieces)

    def _bind(self, key: CallKey) -> tuple[ClientCall, PresenceProbe]:
        n_inputs, content, shapes = key
        structs = _tensors(content)
        dims = iter(np.frombuffer(shapes, np.uint32).tolist())
        pieces: list[tuple[int, int]] = []
        ins = self._read(structs[:n_inputs], dims, pieces)
        result_shapes = (
            output_shapes(self.graph, {name: array.shape for name, array in ins.items()}) if self._varies else {}
        )
        outs, cut = self._written(structs[n_inputs:], dims, pieces, result_shapes)
        probe = PresenceProbe(pieces)
        if not probe.holds():
            raise InvalidArgument(
                "a tensor's data are not this process's memory", st.QNN_GRAPH_ERROR_INVALID_TENSOR
            )
        memory.check_all_writable(pieces[len(ins) :], "an output's data")
        bound = BoundCall(self.graph, ins or None, outs)
        told = self._size_targets(structs[n_inputs:], result_shapes)
        known = (VaryingCall(bound, told, cut) if self._varies else bound, probe)
        if len(self._bound) >= _MOST_BOUND:
            self._last.clear()
            self._seen.clear()
            self._bound.pop(next(iter(self._bound)))
        self._bound[key] = known
        return known

    def _read(self, structs: Any, dims: Iterator[int], pieces: list[tuple[int, int]]) -> Arrays:
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
        structs: Any,
        dims: Iterator[int],
        pieces: list[tuple[int, int]],
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

    def _size_targets(self, structs: Any, result_shapes: dict[str, tuple[int, ...]]) -> list[tuple[int, bytes]]:
        """Where the sizes of varying results go, and what they are."""
        targets = [(tensor_struct.dims, self._outputs[tensor_struct.id]) for tensor_struct in structs]
        return [
            (address, np.array(result_shapes[tensor.name], np.uint32).tobytes())
            for address, tensor in targets
            if tensor.spec.is_dynamic
        ]

    def _data(self, tensor_struct: Any, tensor: Tensor) -> tuple[int, int]:
        """The address of a tensor's data, and how many bytes there are."""
        self._warn_of_another_type(tensor_struct, tensor)
        if tensor_struct.mem_type == MemoryKind.HANDLE:
            mem = handles.find(MemHeld, tensor_struct.buffer.data or 0)
            if mem.parent is not self._context or mem.area.mem.use:
                raise bad_handle("memory of this context's tensors", st.QNN_MEM_ERROR_INVALID_HANDLE, mem.handle)
            address, size = mem.place
        elif tensor_struct.mem_type == MemoryKind.RAW:
            address, size = tensor_struct.buffer.data or 0, tensor_struct.buffer.size
        else:
            raise _bad(
                f"tensor {tensor.name!r} has memory type {tensor_struct.mem_type}; expected raw (0) or handle (1)"
            )
        if not address and tensor.spec.nbytes:
            raise _too_short(tensor, 0, address, tensor.spec.nbytes)
        return address, size

    def _warn_of_another_type(self, tensor_struct: Any, tensor: Tensor) -> None:
        """Data count in the type of the tensor's creation. A number that is no type says nothing."""
        said = tensor_struct.data_type
        if said != tensor.dtype and said in _TYPES:
            warn_once(
                log,
                ("data type", self.graph.name, tensor.name),
                f"graph {self.graph.name!r}: an execution gives tensor {tensor.name!r} as {DType(said).qnn_name};"
                f" it was created as {tensor.dtype.qnn_name}, and its data count as that",
            )


def _pieces(location: Place) -> tuple[tuple[int, int], tuple[int, int]]:
    inputs, n_inputs, outputs, n_outputs = location
    return (inputs, n_inputs * TENSOR_BYTES), (outputs, n_outputs * TENSOR_BYTES)


_nothing = ctypes.c_uint64()


def _tensors(structs: bytes) -> Any:
    return (struct("Tensor") * (len(structs) // TENSOR_BYTES)).from_buffer_copy(structs)


def _has_dims(tensor_struct: Any, spec: TensorSpec) -> bool:
    """Whether a client's tensor says how large it is; those of another rank are not looked at."""
    return bool(spec.rank and tensor_struct.rank == spec.rank and tensor_struct.dims)


def _sorted_out(structs: Any, wanted: dict[int, Tensor], what: str) -> Iterator[tuple[Any, Tensor]]:
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


def _shape(tensor_struct: Any, spec: TensorSpec, dims: Iterator[int]) -> tuple[int, ...]:
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


def _require_dims(tensor_struct: Any, spec: TensorSpec) -> None:
    if not _has_dims(tensor_struct, spec):
        where = f"{tensor_struct.rank} of them" if tensor_struct.dims else "NULL"
        raise _bad(
            f"tensor {spec} has dimensions that vary, and a call gives {where}; expected {spec.rank}",
            st.QNN_GRAPH_ERROR_DYNAMIC_TENSOR_SHAPE,
        )


def _check_elements(tensor_struct: Any, spec: TensorSpec) -> None:
    """Check a client's description of a sparse tensor; its elements are counted in every execution."""
    most = spec.sparse_elements
    if most is not None and tensor_struct.version == VERSION_2 and tensor_struct.sparse.elements > most:
        raise _bad(
            f"tensor {spec} is given with {tensor_struct.sparse.elements} specified elements; at most {most} fit",
            st.QNN_GRAPH_ERROR_TENSOR_SPARSITY,
        )


def _nbytes(spec: TensorSpec, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * spec.dtype.itemsize


def _array(address: int, spec: TensorSpec, shape: tuple[int, ...]) -> Any:
    nbytes = _nbytes(spec, shape)
    raw: Any = (ctypes.c_uint8 * max(1, nbytes)).from_address(address or ctypes.addressof(_nothing))
    return np.frombuffer(raw, spec.dtype.numpy, math.prod(shape)).reshape(shape)


def _too_short(tensor: Tensor, size: int, address: int, nbytes: int) -> InvalidArgument:
    return _bad(f"tensor {tensor.name!r} has {size} bytes at {address:#x}; expected {nbytes} for {tensor.spec}")


def _bad(message: str, status: Status = st.QNN_GRAPH_ERROR_INVALID_TENSOR) -> InvalidArgument:
    return InvalidArgument(message, status)


def _plan(entry: GraphHeld) -> Plan:
    """Return the graph's plan, made by the first execution: the graph's ports are not known before."""
    require_executable(entry.graph)
    plan = entry.plan = Plan(entry)
    return plan


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
