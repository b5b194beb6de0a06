"""The child process: holds the vendor's library and does what its parent asks, one request at a time.

Run as ``python -m openhtp.vendor.service FD``. Ends when its parent closes the socket.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from openhtp.abi.writing import Array, Params
from openhtp.core import status as st
from openhtp.core.enumerations import LogLevel, ProfileLevel
from openhtp.core.errors import InternalError, InvalidArgument, InvalidHandle, QnnError
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorSpec
from openhtp.hw.power import DcvsVote
from openhtp.rpc.shm import SharedBuffer
from openhtp.vendor import wire
from openhtp.vendor.backend import Backend, Device
from openhtp.vendor.context import Context
from openhtp.vendor.graph import Graph, batched
from openhtp.vendor.library import load
from openhtp.vendor.logs import logger as qnn_logger
from openhtp.vendor.power import PowerVotes
from openhtp.vendor.profile import Profile
from openhtp.vendor.recipe import GraphRecipe

_LOG_LINES = 200

# Shared memory by number, and where in it.
Place = tuple[int, int]


class Service:
    """The requests, one method each; arguments and answers are plain data."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._contexts: dict[int, Context] = {}
        self._graphs: dict[int, Graph] = {}
        self._backend: Backend | None = None
        self._device: Device | None = None
        self._votes: PowerVotes | None = None
        self._memory: dict[int, SharedBuffer] = {}
        self._profiles: dict[ProfileLevel, Profile] = {}

    def start(self, path: str, soc: int | str | None, arch: int | None, log_level: int) -> wire.Answer:
        """Load the library and open its device."""
        library = load(path)
        self._backend = backend = Backend(library, log_level=LogLevel(log_level), soc=soc)
        self._device = backend.create_device(soc=soc, arch=arch)
        devices = [
            wire.WireDevice(d.device_id, d.cores, d.soc_model, d.arch, d.vtcm_mb, d.signed_pd, d.dlbc)
            for d in backend.platform()
        ]
        names = sorted({operation.name for operation in backend.operations()})
        info = wire.WireInfo(path, library.build_id, library.core_api, library.htp_api, names, devices)
        return wire.Answer(info=info)

    def create_context(self, **options: Any) -> wire.Answer:
        """Create an empty context."""
        return wire.Answer(id=self._hold(Context.create(self._opened(), **options)))

    def from_binary(self, blob: bytes, **options: Any) -> wire.Answer:
        """Restore a context with its graphs."""
        context = Context.from_binary(self._opened(), blob, **options)
        graphs = [self._show(graph) for graph in context.graphs.values()]
        return wire.Answer(id=self._hold(context), graphs=graphs)

    def build(self, context: int, recipe: GraphRecipe) -> wire.Answer:
        """Create a graph with its tensors and nodes."""
        # Refused before the context is touched; a graph half built stays in its context and cannot be saved.
        tensors = recipe.tensors()
        graph = self._context(context).create_graph(recipe.name, recipe.options)
        for spec in tensors:
            graph.add_tensor(spec, recipe.data.get(spec.name))
        for call, params in recipe.nodes:
            graph.add_node(call, params, validate=recipe.validate)
        return wire.Answer(graphs=[self._show(graph)])

    def finalize(self, graph: int, level: int | None) -> wire.Answer:
        """Compile a graph."""
        profile = self._profile(level)
        self._graph(graph).finalize(profile)
        return wire.Answer(events=_events(profile))

    def execute(self, graph: int, places: Mapping[str, Place], batch: int, level: int | None) -> wire.Answer:
        """Run a graph once on shared memory."""
        held, profile = self._graph(graph), self._profile(level)
        inputs = {spec.name: self._array(spec, places, batch) for spec in held.inputs}
        outputs = {spec.name: self._array(spec, places, batch) for spec in held.outputs}
        held.execute(inputs, profile, outputs=outputs)
        return wire.Answer(events=_events(profile))

    def attach(self, descriptor: int) -> wire.Answer:
        """Map memory that the parent shares."""
        buffer = SharedBuffer.attach(descriptor, may_shrink=True)
        number = next(self._ids)
        self._memory[number] = buffer
        return wire.Answer(id=number)

    def detach(self, memory: int) -> wire.Answer:
        """Unmap shared memory."""
        buffer = self._memory.pop(memory, None)
        if buffer is None:
            raise InvalidHandle(f"memory {memory} was detached", st.QNN_MEM_ERROR_INVALID_HANDLE)
        buffer.close()
        return wire.Answer()

    def get_binary(self, context: int) -> wire.Answer:
        """Save a context."""
        return wire.Answer(blob=self._context(context).get_binary())

    def free(self, context: int) -> wire.Answer:
        """Free a context with its graphs."""
        held = self._context(context)
        del self._contexts[context]
        self._graphs = {id: graph for id, graph in self._graphs.items() if graph not in held.graphs.values()}
        held.free()
        return wire.Answer()

    def validate_op(self, call: OpCall, params: Params, data: Mapping[str, Array]) -> wire.Answer:
        """Ask whether the library can do a node."""
        self._opened().backend.validate_op(call, params, data)
        return wire.Answer()

    def has_capability(self, key: int) -> wire.Answer:
        """Ask for a property."""
        return wire.Answer(flag=self._opened().library.has_capability(key))

    def vote(self, dcvs: DcvsVote | None, rpc_latency_us: int | None, rpc_polling_us: int | None) -> wire.Answer:
        """Change the standing power votes of this process."""
        if self._votes is None:
            self._votes = PowerVotes(self._opened().backend)
        self._votes.vote(dcvs=dcvs, rpc_latency_us=rpc_latency_us, rpc_polling_us=rpc_polling_us)
        return wire.Answer()

    def close(self) -> wire.Answer:
        """Free everything; the process ends after the answer."""
        if self._backend is not None:
            self._backend.free()
        return wire.Answer()

    def _opened(self) -> Device:
        if self._device is None:
            raise InternalError("the vendor process was asked for work before it was started")
        return self._device

    def _hold(self, context: Context) -> int:
        number = next(self._ids)
        self._contexts[number] = context
        return number

    def _show(self, graph: Graph) -> wire.WireGraph:
        number = next(self._ids)
        self._graphs[number] = graph
        return wire.WireGraph(number, graph.name, [wire.spec_to_wire(s) for s in (*graph.inputs, *graph.outputs)])

    def _context(self, number: int) -> Context:
        if number not in self._contexts:
            raise InvalidHandle(f"context {number} was freed", st.QNN_CONTEXT_ERROR_INVALID_HANDLE)
        return self._contexts[number]

    def _graph(self, number: int) -> Graph:
        if number not in self._graphs:
            raise InvalidHandle(f"graph {number} was freed with its context")
        return self._graphs[number]

    def _array(self, spec: TensorSpec, places: Mapping[str, Place], batch: int) -> Array:
        if spec.name not in places:
            raise InvalidArgument(f"tensor {spec.name!r} has no place", st.QNN_GRAPH_ERROR_INVALID_TENSOR)
        memory, offset = places[spec.name]
        buffer = self._memory.get(memory)
        if buffer is None:
            raise InvalidHandle(f"memory {memory} was detached", st.QNN_MEM_ERROR_INVALID_HANDLE)
        if batch < 1 or offset < 0 or offset + spec.nbytes * batch > buffer.nbytes:
            raise InvalidArgument(
                f"tensor {spec.name!r} of {spec.nbytes * batch} bytes does not fit at {offset} of {buffer.nbytes}",
                st.QNN_MEM_ERROR_INVALID_SHAPE,
            )
        return buffer.array(offset, batched(spec, batch), spec.dtype.numpy)

    def _profile(self, level: int | None) -> Profile | None:
        if level is None:
            return None
        wanted = ProfileLevel(level)
        if wanted not in self._profiles:
            self._profiles[wanted] = self._opened().backend.create_profile(wanted)
        return self._profiles[wanted]


def _events(profile: Profile | None) -> list[wire.WireEvent]:
    return [wire.event_to_wire(event) for event in profile.events()] if profile else []


class _Collector(logging.Handler):
    """Holds log lines until the next answer takes them along."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line; the first ones of a flood tell most."""
        if len(self.lines) < _LOG_LINES:
            self.lines.append((record.levelno, record.getMessage()))

    def take(self) -> list[tuple[int, str]]:
        """The lines so far, once."""
        lines, self.lines = self.lines, []
        return lines


def answer(service: Service, verb: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> wire.Answer:
    """Do one request; whatever goes wrong becomes part of the answer."""
    try:
        result: wire.Answer = getattr(service, verb)(*arguments, **options)
        return result
    except QnnError as error:
        return wire.Answer(error=wire.error_to_wire(error))
    except Exception as error:
        return wire.Answer(error=wire.error_to_wire(InternalError(f"{verb} in the vendor process: {error!r}")))


def serve(connection: Connection) -> None:
    """Answer requests until the parent is gone or says close."""
    collector = _Collector()
    qnn_logger.addHandler(collector)
    qnn_logger.setLevel(logging.DEBUG)
    qnn_logger.propagate = False
    service = Service()
    verb = ""
    while verb != "close":
        try:
            verb, arguments, options = connection.recv()
            if verb == "attach":
                arguments = (reduction.recv_handle(connection),)
        except (EOFError, OSError):
            return
        reply = answer(service, verb, arguments, options)
        reply.logs = collector.take()
        connection.send_bytes(wire.encode(reply))


def main() -> None:
    """Serve on the socket whose descriptor is the only argument."""
    serve(Connection(int(sys.argv[1])))
    sys.stdout.flush()
    # Not sys.exit: the library's own exit handlers are known to abort.
    os._exit(0)


if __name__ == "__main__":
    main()
