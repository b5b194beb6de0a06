"""What a client process owns on the device: a session (process domain) with contexts, graphs and memory."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, InvalidHandle, OutOfMemory, QnnError
from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.tensor import TensorSpec, batched
from openhtp.core.units import bytes_in_words
from openhtp.device.jobs import Job
from openhtp.engine.protocol import LoadedProgram, Run
from openhtp.program.packed import GraphInfo
from openhtp.program.qnn_program import QnnProgram
from openhtp.rpc import frames
from openhtp.rpc.shm import SharedBuffer
from openhtp.sched.timed import Pace

_T = TypeVar("_T")

# Where the system sets no limit.
MAX_DESCRIPTORS = 1 << 20
# Finished bindings kept per graph; a client that uses new memory for every call must not grow the device.
MAX_BINDINGS_KEPT = 512


class DeviceGraph:
    """A program made ready, and the bindings that were made for it."""

    def __init__(
        self,
        number: int,
        context: DeviceContext,
        info: GraphInfo,
        loaded: LoadedProgram,
        program: QnnProgram | None,
    ) -> None:
        """``program`` is what it was made from; None if that was a prepared form."""
        self.number = number
        self.context = context
        self.program = program
        self.loaded = loaded
        self.steps = loaded.steps
        self.ports: list[TensorSpec] = [*info.inputs, *info.outputs]
        self.name = info.name
        self.last_step_ns = 1_000_000_000
        self.nbytes = 0
        self.started = False
        self.pace: Pace | None = None
        # Testing: the next execution fails with this after that step.
        self.fault: tuple[int, QnnError] | None = None
        self._idle: dict[bytes, list[list[Run]]] = {}

    def take_runs(self, key: bytes, make: Callable[[], list[Run]]) -> list[Run]:
        """Runs bound to the memory that ``key`` names: kept ones if any are idle, else new ones."""
        idle = self._idle.get(key)
        if idle:
            return idle.pop()
        return make()

    def give_back(self, key: bytes, runs: list[Run]) -> None:
        """Keep runs for the next execution on the same memory."""
        idle = self._idle.get(key)
        if idle is None:
            if len(self._idle) >= MAX_BINDINGS_KEPT:
                self._idle.pop(next(iter(self._idle)))
            self._idle[key] = [runs]
        else:
            idle.append(runs)

    def forget_memory(self, memory: int) -> None:
        """Drop bindings that use memory which is about to go."""
        for key in list(self._idle):
            count = len(key) // frames.BINDING.size
            ids = [frames.BINDING.unpack_from(key, i * frames.BINDING.size)[1] for i in range(count)]
            if memory in ids:
                del self._idle[key]

    def close(self) -> None:
        """Free what the engine holds, and the program, which may lie in memory of the client's."""
        self._idle.clear()
        self.program = None
        self.loaded.close()


class DeviceApp:
    """A client that is no graph: it computes nothing here, but holds VTCM and HVX while it runs."""

    steps = 1
    last_step_ns = 1_000_000_000
    nbytes = 0

    def __init__(self, number: int, context: DeviceContext, name: str) -> None:
        self.number = number
        self.context = context
        self.name = name
        self.started = False
        self.pace: Pace | None = None
        self.fault: tuple[int, QnnError] | None = None

    def give_back(self, key: bytes, runs: list[Run]) -> None:
        """Nothing was bound."""

    def forget_memory(self, memory: int) -> None:
        """It uses none."""

    def close(self) -> None:
        """It holds nothing."""


class DeviceContext:
    """A context: graphs and memory that are freed together."""

    def __init__(self, number: int, session: Session, priority: int, queue_depth: int) -> None:
        self.number = number
        self.session = session
        self.priority = priority
        self.queue_depth = queue_depth
        self.graphs: dict[int, DeviceGraph | DeviceApp] = {}
        self.memories: set[int] = set()
        self.pending = 0  # executions accepted and neither over nor cancelled
        self.closed = False


class Session:
    """One client's process domain."""

    def __init__(self, number: int, *, pid: int, label: str) -> None:
        self.number = number
        self.pid = pid
        self.label = label
        self.contexts: dict[int, DeviceContext] = {}
        self.graphs: dict[int, DeviceGraph | DeviceApp] = {}
        self.memories: dict[int, SharedBuffer] = {}
        self.jobs: dict[int, Job] = {}
        self.bytes_used = 0
        self.buffers = 0
        self.closed = False
        # Something broke that leaves the scheduler's knowledge of it in doubt.
        self.broken = False
        self.held = False
        self.executions = 0

    def reserve(self, nbytes: int, what: str) -> None:
        """Count memory against the session's limits. Raises OutOfMemory and counts nothing if it is over one."""
        if self.bytes_used + nbytes > SESSION_LIMIT_BYTES:
            raise OutOfMemory(
                f"{what} needs {bytes_in_words(nbytes)}, but session {self.number} holds"
                f" {bytes_in_words(self.bytes_used)} of {bytes_in_words(SESSION_LIMIT_BYTES)}; free contexts"
                " or memory, or open another session",
                st.QNN_CONTEXT_ERROR_MEM_ALLOC,
            )
        limit = buffer_limit()
        if self.buffers >= limit:
            raise OutOfMemory(
                f"session {self.number} holds {self.buffers} pieces of shared memory, and may hold {limit}."
                " Free contexts or memory, use larger pieces, or raise the limit of open files (ulimit -n)",
                st.QNN_CONTEXT_ERROR_MEM_ALLOC,
            )
        self.bytes_used += nbytes
        self.buffers += 1

    def give_back(self, nbytes: int) -> None:
        """Take one piece of memory off the count."""
        self.bytes_used -= nbytes
        self.buffers -= 1


def find(table: dict[int, _T], number: int, what: str) -> _T:
    """What a client names by number: its own, since every session has tables of its own."""
    found = table.get(number)
    if found is None:
        raise InvalidHandle(f"{what} {number} does not exist in this session")
    return found


def buffer_limit() -> int:
    """How many pieces of memory a client may have: two descriptors each, half of all for one client."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (MAX_DESCRIPTORS if descriptors == resource.RLIM_INFINITY else descriptors) // 4


def bind_ports(
    graph: DeviceGraph,
    memories: dict[int, SharedBuffer],
    key: bytes,
    count: int,
    batch: int,
    *,
    with_dims: bool,
) -> list[Run]:
    """Check everything that a client says about its memory, then bind one Run per piece of the batch.

    The client's own library has checked it too; this is for clients that lie.
    """
    try:
        bindings, dims = frames.unpack_bindings(key, count, with_dims=with_dims)
    except ValueError as error:
        raise InvalidArgument(str(error), st.QNN_GRAPH_ERROR_INVALID_ARGUMENT) from error
    if not 1 <= batch <= 4096:
        raise InvalidArgument(f"batch multiple {batch}", st.QNN_GRAPH_ERROR_INVALID_ARGUMENT)
    arrays: dict[int, npt.NDArray[Any]] = {}
    for index, binding in enumerate(bindings):
        if binding.port >= len(graph.ports) or binding.port in arrays:
            raise InvalidArgument(
                f"port {binding.port} is unknown or bound twice", st.QNN_GRAPH_ERROR_INVALID_TENSOR
            )
        spec = graph.ports[binding.port]
        shape = _shape(spec, dims[index] if dims is not None else spec.shape, batch)
        arrays[binding.port] = _view(spec, memories.get(binding.memory), binding, shape)
    for port, spec in enumerate(graph.ports):
        if port not in arrays:
            arrays[port] = _left_out(spec, batch)
    return [_bind_piece(graph, arrays, batch, piece) for piece in range(batch)]


def _shape(spec: TensorSpec, dims: tuple[int, ...], batch: int) -> tuple[int, ...]:
    if not spec.accepts(dims):
        raise InvalidArgument(
            f"dimensions {list(dims)} for tensor {spec}", st.QNN_GRAPH_ERROR_DYNAMIC_TENSOR_SHAPE
        )
    return batched(dims, batch)


def _view(
    spec: TensorSpec, memory: SharedBuffer | None, binding: frames.Binding, shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    if memory is None:
        raise InvalidArgument(
            f"memory {binding.memory} of tensor {spec.name!r} is not registered",
            st.QNN_GRAPH_ERROR_INVALID_TENSOR,
        )
    nbytes = int(np.prod(shape, dtype=object)) * spec.dtype.itemsize
    if binding.offset % spec.dtype.itemsize or binding.offset + nbytes > memory.nbytes:
        raise InvalidArgument(
            f"tensor {spec} needs {nbytes} bytes at offset {binding.offset}, the memory has {memory.nbytes}",
            st.QNN_GRAPH_ERROR_INVALID_TENSOR,
        )
    return memory.array(binding.offset, shape, spec.dtype.numpy)


def _left_out(spec: TensorSpec, batch: int) -> npt.NDArray[Any]:
    """A stand-in for an optional tensor: an input reads as zero, an output goes nowhere."""
    if not spec.kind.is_optional:
        raise InvalidArgument(f"tensor {spec.name!r} is missing", st.QNN_GRAPH_ERROR_INVALID_TENSOR)
    zero = getattr(spec.quant, "zero_point", 0) if spec.dtype.is_fixed_point else 0
    return np.full(batched(spec.shape, batch), zero, spec.dtype.numpy)


def _bind_piece(graph: DeviceGraph, arrays: dict[int, npt.NDArray[Any]], batch: int, piece: int) -> Run:
    if batch == 1:
        return graph.loaded.bind({graph.ports[port].name: array for port, array in arrays.items()})
    pieces = {}
    for port, array in arrays.items():
        rows = array.shape[0] // batch
        pieces[graph.ports[port].name] = array[piece * rows : (piece + 1) * rows]
    return graph.loaded.bind(pieces)
