"""The vendor's library in a process of its own, and the client's side of it.

A crash, a hang or a leak of the closed library stays there: the caller gets ``DeviceLost`` or ``TimedOut``
and may ``restart()``. Calls are safe from several threads; the library runs one at a time, as it does anyway.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from openhtp.abi.writing import Array, Params, as_stored
from openhtp.core.enumerations import LogLevel, ProfileLevel
from openhtp.core.errors import DeviceLost, InvalidArgument, TimedOut
from openhtp.core.opcall import OpCall
from openhtp.core.priority import Priority
from openhtp.core.tensor import TensorSpec
from openhtp.hw.power import DcvsVote
from openhtp.rpc.shm import SharedBuffer, align
from openhtp.vendor import wire
from openhtp.vendor.child import CLOSE_TIMEOUT_S, Child
from openhtp.vendor.graph import batch_of, batched
from openhtp.vendor.library import require_library
from openhtp.vendor.profile import ProfileEvent
from openhtp.vendor.recipe import GraphRecipe, plain_call, recipe_to_send

logger = logging.getLogger("openhtp.vendor.qnn")

DEFAULT_TIMEOUT_S = 300.0
_ARENA_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class GraphRef:
    """A graph in the vendor process. It is lost with that process, and freed with its context."""

    id: int
    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class MemoryRef:
    """Shared memory that the vendor process has mapped."""

    id: int
    generation: int


@dataclass(frozen=True, slots=True)
class ContextRef:
    """A context in the vendor process; ``graphs`` holds those of a restored one."""

    id: int
    graphs: Mapping[str, GraphRef]
    generation: int


class VendorProcess:
    """A child process that holds the library, one device and any number of contexts."""

    def __init__(
        self,
        library: str | os.PathLike[str] | None = None,
        *,
        soc: int | str | None = None,
        arch: int | None = None,
        log_level: LogLevel = LogLevel.WARN,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Start the process and load the library, by default the one that ``find_library`` finds.

        ``timeout_s`` bounds every call that is not given its own limit.
        """
        self._path = str(library) if library is not None else str(require_library())
        self._start = (self._path, soc, arch, int(log_level))
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._generation = 0
        self._child: Child | None = None
        self._arena_lock = threading.Lock()
        self._arena: tuple[SharedBuffer, MemoryRef] | None = None
        self.info = self._launch()

    @property
    def pid(self) -> int | None:
        """Of the process; None when it is lost or closed."""
        return self._child.process.pid if self._child else None

    def create_context(
        self,
        *,
        priority: Priority | None = None,
        queue_depth: int | None = None,
        weight_sharing: bool = False,
    ) -> ContextRef:
        """Create an empty context."""
        made = self._ask(
            "create_context",
            options={"priority": priority, "queue_depth": queue_depth, "weight_sharing": weight_sharing},
        )
        return ContextRef(made.id, {}, self._generation)

    def build(self, recipe: GraphRecipe, context: ContextRef) -> GraphRef:
        """Create a graph with its tensors and nodes; not compiled yet."""
        self._check(context)
        made = self._ask("build", context.id, recipe_to_send(recipe))
        return self._graph_ref(made.graphs[0])

    def finalize(
        self, graph: GraphRef, *, profile: ProfileLevel | None = None, timeout_s: float | None = None
    ) -> tuple[ProfileEvent, ...]:
        """Compile a graph; gives the events of a profile if one was asked for."""
        self._check(graph)
        done = self._ask("finalize", graph.id, profile, timeout_s=timeout_s)
        return tuple(wire.wire_to_event(event) for event in done.events)

    def execute(
        self, graph: GraphRef, inputs: Mapping[str, Array], *, timeout_s: float | None = None
    ) -> dict[str, Array]:
        """Run a graph once. Every input by name; all may hold the same multiple of the batch."""
        return self.execute_profiled(graph, inputs, None, timeout_s=timeout_s)[0]

    def execute_profiled(
        self,
        graph: GraphRef,
        inputs: Mapping[str, Array],
        profile: ProfileLevel | None,
        *,
        timeout_s: float | None = None,
    ) -> tuple[dict[str, Array], tuple[ProfileEvent, ...]]:
        """Run a graph once and give the events along with the outputs."""
        self._check(graph)
        batch = batch_of(graph.name, graph.inputs, inputs)
        sources = [as_stored(spec, inputs[spec.name], batched(spec, batch)) for spec in graph.inputs]
        offsets: dict[str, int] = {}
        end = 0
        for spec in (*graph.inputs, *graph.outputs):
            offsets[spec.name] = end
            end = align(end + spec.nbytes * batch)
        with self._arena_lock:
            arena, memory = self._arena_of(end)
            for spec, source in zip(graph.inputs, sources, strict=True):
                arena.array(offsets[spec.name], source.shape, source.dtype)[...] = source
            places = {name: (memory, offset) for name, offset in offsets.items()}
            events = self.execute_shared(graph, places, batch=batch, profile=profile, timeout_s=timeout_s)
            outputs = {
                spec.name: arena.array(offsets[spec.name], batched(spec, batch), spec.dtype.numpy).copy()
                for spec in graph.outputs
            }
        return outputs, events

    def execute_shared(
        self,
        graph: GraphRef,
        places: Mapping[str, tuple[MemoryRef, int]],
        *,
        batch: int = 1,
        profile: ProfileLevel | None = None,
        timeout_s: float | None = None,
    ) -> tuple[ProfileEvent, ...]:
        """Run a graph on attached memory, without a copy: for every input and output its memory and offset."""
        self._check(graph)
        for memory, _ in places.values():
            self._check(memory)
        where = {name: (memory.id, offset) for name, (memory, offset) in places.items()}
        done = self._ask("execute", graph.id, where, batch, profile, timeout_s=timeout_s)
        return tuple(wire.wire_to_event(event) for event in done.events)

    def attach(self, buffer: SharedBuffer) -> MemoryRef:
        """Share memory with the process, for ``execute_shared``. The caller keeps the buffer."""
        return MemoryRef(self._ask("attach", descriptor=buffer.fd).id, self._generation)

    def detach(self, memory: MemoryRef) -> None:
        """Stop sharing. What is lost with its process counts as detached."""
        if self._child is not None and memory.generation == self._generation:
            self._ask("detach", memory.id)

    def _arena_of(self, nbytes: int) -> tuple[SharedBuffer, MemoryRef]:
        """Memory of our own for copied tensors; grows, and is shared again with a new process."""
        if self._arena is not None:
            buffer, memory = self._arena
            if memory.generation == self._generation and buffer.nbytes >= nbytes:
                return buffer, memory
            self._arena = None
            self.detach(memory)
            buffer.close()
        buffer = SharedBuffer.create(max(nbytes, _ARENA_BYTES))
        try:
            self._arena = buffer, self.attach(buffer)
        except BaseException:
            buffer.close()
            raise
        return self._arena

    def get_binary(self, context: ContextRef) -> bytes:
        """Save a context whose graphs are all finalized."""
        self._check(context)
        return self._ask("get_binary", context.id).blob

    def from_binary(
        self,
        blob: bytes,
        *,
        priority: Priority | None = None,
        queue_depth: int | None = None,
        enable_graphs: Sequence[str] = (),
    ) -> ContextRef:
        """Restore a context; its graphs are ready to execute."""
        options = {"priority": priority, "queue_depth": queue_depth, "enable_graphs": tuple(enable_graphs)}
        made = self._ask("from_binary", bytes(blob), options=options)
        graphs = {graph.name: self._graph_ref(graph) for graph in made.graphs}
        return ContextRef(made.id, graphs, self._generation)

    def free(self, context: ContextRef) -> None:
        """Free a context with its graphs. What is lost with its process counts as freed."""
        if self._child is not None and context.generation == self._generation:
            self._ask("free", context.id)

    def validate_op(self, call: OpCall, params: Params, data: Mapping[str, Array] | None = None) -> None:
        """Raise UnsupportedOp, with the library's reason, if it cannot do a node."""
        self._ask("validate_op", plain_call(call), dict(params), dict(data or {}))

    def has_capability(self, key: int) -> bool | None:
        """Whether the library says that it has a property; None for a key that it does not know."""
        return self._ask("has_capability", key).flag

    def vote(
        self,
        *,
        dcvs: DcvsVote | None = None,
        rpc_latency_us: int | None = None,
        rpc_polling_us: int | None = None,
    ) -> None:
        """Change the power votes that stand while the process lives."""
        self._ask("vote", dcvs, rpc_latency_us, rpc_polling_us)

    def restart(self) -> None:
        """Start afresh after a loss. Contexts and graphs of before stay lost; build them again."""
        with self._lock:
            if self._child is not None:
                self._child.end()
                self._child = None
        self.info = self._launch()

    def close(self) -> None:
        """End the process; closing twice does nothing. A call under way in another thread is cut short."""
        if not self._lock.acquire(timeout=CLOSE_TIMEOUT_S):
            child = self._child
            if child is not None:
                child.process.kill()
            self._lock.acquire()
        try:
            child, self._child = self._child, None
        finally:
            self._lock.release()
        with self._arena_lock:
            if self._arena is not None:
                self._arena[0].close()
                self._arena = None
        # At interpreter exit the process may have been ended already.
        if child is None or not child.end.alive:
            return
        try:
            child.ask("close", (), {}, CLOSE_TIMEOUT_S)
        except (DeviceLost, TimedOut):
            logger.debug("the vendor process did not close by itself")
        child.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _launch(self) -> wire.WireInfo:
        with self._lock:
            self._child = Child(Path(self._path))
            self._generation += 1
        try:
            info = self._ask("start", *self._start).info
        except BaseException:
            self.close()
            raise
        if info is None:
            raise DeviceLost("the vendor process did not say what it loaded")
        return info

    def _ask(
        self,
        verb: str,
        *arguments: Any,
        options: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        descriptor: int | None = None,
    ) -> wire.Answer:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        if limit_s <= 0:
            raise InvalidArgument(f"timeout is {limit_s} s; expected more than 0")
        with self._lock:
            if self._child is None:
                raise DeviceLost(f"{verb}: the vendor process is gone; restart() starts a new one")
            try:
                answer = self._child.ask(verb, arguments, options or {}, limit_s, descriptor)
            except (DeviceLost, TimedOut):
                self._child.end()
                self._child = None
                raise
        for level, text in answer.logs:
            logger.log(level, "%s", text)
        if answer.error is not None:
            raise wire.wire_to_error(answer.error)
        return answer

    def _check(self, ref: GraphRef | ContextRef | MemoryRef) -> None:
        if ref.generation != self._generation:
            raise DeviceLost("the graph, context or memory was lost with an earlier vendor process; make it again")

    def _graph_ref(self, graph: wire.WireGraph) -> GraphRef:
        specs = [wire.wire_to_spec(tensor) for tensor in graph.tensors]
        inputs = tuple(spec for spec in specs if spec.kind.is_input)
        outputs = tuple(spec for spec in specs if spec.kind.is_output)
        return GraphRef(graph.id, graph.name, inputs, outputs, self._generation)
