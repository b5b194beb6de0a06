"""Adapters: the data of updateable tensors is exchanged while their graph stays loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, InvalidHandle, UnsupportedFeature
from openhtp.device.contexts import UpdateableGraph
from openhtp.device.loading import BinaryFile, Ready, close_all, make_one_ready
from openhtp.device.requests.table import Asked, handles
from openhtp.device.sessions import find
from openhtp.device.tasks import Task
from openhtp.memory.ledger import MemoryGrant, MemoryUse
from openhtp.program.binary import open_binary
from openhtp.program.packed import PackedGraph
from openhtp.program.sections import read_section
from openhtp.program.sources import MemorySource
from openhtp.rpc import messages as ms
from openhtp.rpc.channel import ProtocolError

Arrays = dict[str, npt.NDArray[Any]]


def _updateable(asked: Asked, number: int) -> UpdateableGraph:
    graph = find(asked.session.graphs, number, "graph")
    if not isinstance(graph, UpdateableGraph):
        raise UnsupportedFeature(
            f"graph {graph.name!r} has no updateable tensors", st.QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE
        )
    return graph


def _granted(graph: UpdateableGraph, nbytes: int) -> MemoryGrant:
    """Memory for other data. Graphs that share it have had it since they were loaded."""
    context = graph.context
    wanted = 0 if context.shares_updates else nbytes
    return context.session.ledger.take(context.tenant, wanted, MemoryUse.WEIGHTS, "the binary section")


@handles(ms.UpdateGraph, takes_descriptor=True)
def update(asked: Asked, request: ms.UpdateGraph) -> Task[Arrays]:
    """Exchange data. It is copied first: the client could change it while executions run."""
    graph = _updateable(asked, request.graph)
    buffer = asked.memory()
    try:
        if not 0 < request.nbytes <= buffer.nbytes:
            raise ProtocolError(f"a section of {request.nbytes} bytes in {buffer.nbytes} bytes of memory")
        grant = _granted(graph, request.nbytes)
    except BaseException:
        buffer.close()
        raise

    def work(task: Task[Arrays]) -> Arrays:
        view = buffer.view[: request.nbytes]
        section = read_section(view, graph.name, graph.updateables, validate=request.validate)
        return {name: np.array(array) for name, array in section.data.items()}

    def finish(arrays: Arrays) -> ms.Reply:
        buffer.close()
        # The graph may have been freed meanwhile, alone or with its context.
        find(asked.session.graphs, request.graph, "graph")
        graph.update(arrays, grant)
        return ms.Reply()

    def undo() -> None:
        grant.give_back()
        buffer.close()

    return Task("updating", graph.context, work=work, finish=finish, undo=undo)


@dataclass(frozen=True, slots=True)
class _Replacement:
    packed: PackedGraph
    ready: Ready
    data: Arrays


@handles(ms.ReplaceProgram, takes_descriptor=True)
def replace(asked: Asked, request: ms.ReplaceProgram) -> Task[_Replacement]:
    """Replace a program. Encodings are compiled into it, so other encodings need another program."""
    graph, core = _updateable(asked, request.graph), asked.core
    context = graph.context
    file = BinaryFile(asked.descriptor())
    try:
        if not isinstance(file.source, MemorySource):
            raise InvalidArgument("a program that replaces another comes in memory that nobody can write any more")
        nbytes = sum(spec.nbytes for spec in graph.updateables if spec.kind.is_static)
        grant = _granted(graph, nbytes)
    except BaseException:
        file.close()
        raise

    def work(task: Task[_Replacement]) -> _Replacement:
        binary = open_binary(file.source)
        packed = binary.packed(binary.graph_names[0])
        _check_same(graph, packed)
        task.check()
        ready = make_one_ready(core.target, packed, ms.AT_ONCE)
        return _Replacement(
            packed, ready, {name: np.array(array) for name, array in packed.updateable_data().items()}
        )

    def finish(replacement: _Replacement) -> ms.Reply:
        try:
            find(asked.session.graphs, request.graph, "graph")
        except InvalidHandle:
            close_all([replacement.ready])
            raise
        graph.replace(replacement.packed, replacement.ready.loaded, replacement.data, grant)
        now = ms.ReadyGraph(graph=graph.number, steps=graph.steps, prepared=False)
        return ms.Reply(graphs=[now])

    def undo() -> None:
        grant.give_back()
        file.close()

    return Task(
        "replacing", context, work=work, finish=finish, discard=lambda unused: close_all([unused.ready]), undo=undo
    )


def _check_same(graph: UpdateableGraph, packed: PackedGraph) -> None:
    """Raise InvalidArgument unless the program has the graph's name, tensors and data sizes."""
    info = packed.info()
    known = [(spec.name, spec.shape, spec.dtype) for spec in (*graph.ports, *graph.updateables)]
    described = [(spec.name, spec.shape, spec.dtype) for spec in (*info.inputs, *info.outputs, *info.updateables)]
    if packed.name != graph.name or known != described or info.static_bytes != graph.static_bytes:
        raise InvalidArgument(
            f"the program of graph {packed.name!r} has other tensors or other data than graph {graph.name!r}"
        )
