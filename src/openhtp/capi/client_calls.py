"""Executions that are more than running a graph on a client's arrays.

Some are on structures that nobody has seen before: their data are copied, as arrays are bound for those that come
again. Others have results that vary in size: their sizes are written into the dimensions that the client gave.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct, calcsize
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from openhtp.abi import memory
from openhtp.abi.memory import Piece, ScatteredCopy
from openhtp.abi.numbers import VERSION_1, VERSION_2, MemoryKind
from openhtp.abi.structs import struct
from openhtp.core import status as st
from openhtp.core.errors import QnnError
from openhtp.runtime.calls.bound_call import BoundCall, CopiedCall

if TYPE_CHECKING:
    from openhtp.runtime.calls.execution import Notify
    from openhtp.runtime.objects.profile import Profile
    from openhtp.runtime.objects.signal import Signal
    from openhtp.runtime.objects.tensor import Tensor

# Binding arrays takes about as long as so many executions gain from it; the first one, where copies are large.
COPIED_TIMES = 8
_LARGE_BYTES = 1 << 16
_LOST = st.QNN_GRAPH_ERROR_DYNAMIC_TENSOR_SHAPE
_DIM_BYTES = 4
_RAW = int(MemoryKind.RAW)


class GivenTensor(NamedTuple):
    """What an execution looks at in a client's tensor."""

    version: int
    id: int
    data_type: int
    rank: int
    dims: int
    mem_type: int
    data: int
    size: int
    elements: int


def _given_layout() -> Struct:
    """Where these members lie in the structure. Unpacked by themselves, they take a tenth of the time."""
    kind = struct("Tensor")
    buffer, sparse = kind.buffer.offset, kind.sparse.offset
    inner = {
        "data": buffer + struct("ClientBuffer").data.offset,
        "size": buffer + struct("ClientBuffer").size.offset,
        "elements": sparse + struct("SparseParams").elements.offset,
    }
    layout, end = "=", 0
    for name in GivenTensor.__annotations__:
        offset = inner[name] if name in inner else getattr(kind, name).offset
        code = "Q" if name in ("dims", "data") else "I"
        layout += f"{offset - end}x{code}"
        end = offset + calcsize(f"={code}")
    return Struct(f"{layout}{ctypes.sizeof(kind) - end}x")


_GIVEN = _given_layout()


def given_tensors(structs: bytes) -> list[GivenTensor]:
    """The tensors of structures that follow each other."""
    return [*map(GivenTensor._make, _GIVEN.iter_unpack(structs))]


# The address of a tensor's data and how many bytes there are. Raises the error that they deserve.
Locate = Callable[[GivenTensor, "Tensor"], Piece]


class _CopiedPort(NamedTuple):
    """An input or output of a graph whose data are copied, and its place among those of its side."""

    tensor: Tensor
    place: int
    is_input: bool
    data_type: int
    rank: int
    nbytes: int


class Copier:
    """Copies the data of a small graph's executions between a client's memory and the arrays of ``call``.

    Everything that is the same for all executions is made here, when nobody waits for one.
    """

    def __init__(self, call: CopiedCall, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self.call = call
        tensors = (*inputs, *outputs)
        self._n_inputs = len(inputs)
        self._ports = {
            tensor.id: _CopiedPort(
                tensor, place, place < len(inputs), int(tensor.dtype), tensor.spec.rank, tensor.spec.nbytes
            )
            for place, tensor in enumerate(tensors)
        }
        self._expected = b"".join(np.array(tensor.spec.shape, np.uint32).tobytes() for tensor in tensors)
        self._dims = bytearray(self._expected)
        own = [call.arrays[tensor.name].reshape(-1).view(np.uint8).data for tensor in tensors]
        self.times = COPIED_TIMES if sum(view.nbytes for view in own) <= _LARGE_BYTES else min(COPIED_TIMES, 1)
        # For who has the arrays: dimensions and inputs are read together, outputs are written together.
        dims, end = memoryview(self._dims), 0
        ranks: list[memoryview] = []
        for tensor in tensors:
            ranks.append(dims[end : end + _DIM_BYTES * tensor.spec.rank])
            end += ranks[-1].nbytes
        self._reader = ScatteredCopy((*ranks, *own[: len(inputs)]))
        self._writer = ScatteredCopy(own[len(inputs) :])

    @staticmethod
    def takes(tensors: Sequence[Tensor]) -> bool:
        """Whether all of them have dimensions and data."""
        return all(tensor.spec.rank and tensor.spec.nbytes for tensor in tensors)

    def copies(self, n_inputs: int, given: list[GivenTensor], locate: Locate) -> ClientCopies | None:
        """Those of an execution; None unless all tensors are given, and each as the graph declares it."""
        count = len(self._ports)
        if n_inputs != self._n_inputs or len(given) != count:
            return None
        dims, data = [0] * count, [0] * count
        for number, tensor in enumerate(given):
            port = self._ports.get(tensor.id)
            if port is None or port.is_input != (number < n_inputs) or data[port.place] or not tensor.dims:
                return None
            if tensor.rank != port.rank or tensor.version not in (VERSION_1, VERSION_2):
                return None
            address, size = tensor.data, tensor.size
            if tensor.mem_type != _RAW or tensor.data_type != port.data_type:
                address, size = locate(tensor, port.tensor)
            if size < port.nbytes or not address:
                return None
            dims[port.place], data[port.place] = tensor.dims, address
        return ClientCopies(self, dims + data[:n_inputs], data[n_inputs:])

    def fill(self, places: list[int]) -> bool:
        """Copy inputs; False if one is not there or of another size. ``places``: of all dimensions, of inputs."""
        self._reader.aim(places)
        return self._reader.read() and self._dims == self._expected

    def drain(self, places: list[int]) -> bool:
        """Copy outputs; False if one cannot be written."""
        self._writer.aim(places)
        return self._writer.write()


class ClientCopies(NamedTuple):
    """What is copied before and after one execution, by its places."""

    copier: Copier
    read: list[int]
    written: list[int]

    def fill(self) -> bool:
        """Copy the inputs."""
        return self.copier.fill(self.read)

    def drain(self) -> bool:
        """Copy the outputs."""
        return self.copier.drain(self.written)


class FirstCall:
    """Executions on structures that have not come often; like all others unless they can run at once."""

    __slots__ = ("_call", "_copies", "_otherwise", "times_left")

    def __init__(
        self, call: CopiedCall, copies: ClientCopies, otherwise: Callable[[], BoundCall | VaryingCall]
    ) -> None:
        self._call = call
        self._copies = copies
        self._otherwise = otherwise
        self.times_left = copies.copier.times

    def run(self, profile: Profile | None = None, signal: Signal | None = None) -> None:
        """Compute, and wait for the end."""
        if profile is not None or signal is not None or not self._call.run(self._copies):
            self._otherwise().run(profile, signal)

    def run_async(
        self, notify: Notify | None, profile: Profile | None = None, signal: Signal | None = None
    ) -> None:
        """Queue an execution."""
        if profile is not None or signal is not None or not self._call.run_async(self._copies, notify):
            self._otherwise().run_async(notify, profile, signal)


@dataclass(frozen=True, slots=True)
class CutResult:
    """A result that is too long for the client's memory, which gets its beginning."""

    name: str
    whole: npt.NDArray[np.generic]
    address: int
    room: int

    def hand_over(self) -> None:
        """What fits."""
        ctypes.memmove(self.address, self.whole.ctypes.data, self.room)

    def __str__(self) -> str:
        return f"{self.name!r} takes {self.whole.nbytes} bytes, of which {self.room} fit"


class VaryingCall:
    """A bound call, where to write the sizes of its results, and which results are cut."""

    __slots__ = ("_bound", "_cut", "_told")

    def __init__(self, bound: BoundCall, told: list[tuple[int, bytes]], cut: list[CutResult]) -> None:
        self._bound = bound
        self._told = told
        self._cut = cut

    def run(self, profile: Profile | None = None, signal: Signal | None = None) -> None:
        """Compute, wait for the end, and write the sizes."""
        for address, dims in self._told:
            memory.check_writable(address, len(dims), "an output's dimensions")
        self._bound.run(profile, signal)
        self._write_sizes()
        if self._cut:
            self._hand_over()
            raise QnnError(f"results were cut: {', '.join(map(str, self._cut))}", _LOST)

    def run_async(
        self, notify: Notify | None, profile: Profile | None = None, signal: Signal | None = None
    ) -> None:
        """Queue an execution.

        Sizes follow from those of the inputs, so they are written before it is over. Later, the client's
        dimensions may be gone: nothing says that they outlast the call.
        """
        before = [(address, memory.read(address, len(dims))) for address, dims in self._told]
        try:
            self._write_sizes()
            self._bound.run_async(self._ending(notify) if self._cut else notify, profile, signal)
        except BaseException:
            for address, dims in before:
                memory.write(address, dims)
            raise

    def _write_sizes(self) -> None:
        for address, dims in self._told:
            memory.write(address, dims, "an output's dimensions")

    def _hand_over(self) -> None:
        for result in self._cut:
            result.hand_over()

    def _ending(self, notify: Notify | None) -> Notify:
        def end(param: object, status: int) -> None:
            if not status:
                self._hand_over()
                status = _LOST.code
            if notify is not None:
                notify(param, status)

        return end
