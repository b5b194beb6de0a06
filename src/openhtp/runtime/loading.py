"""Graphs go to the device: all that a context gets at once in one piece of memory, and all or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from openhtp.core import status as st
from openhtp.core.errors import OutOfMemory
from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.units import bytes_in_words
from openhtp.program.packed import PackedGraph
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import SharedBuffer
from openhtp.runtime import rescue
from openhtp.runtime.links.link import Undo

if TYPE_CHECKING:
    from openhtp.runtime.context import Context
    from openhtp.runtime.graph import Graph
    from openhtp.runtime.stopping import Stop


def load_graphs(
    context: Context,
    parts: Sequence[bytes | memoryview],
    graphs: Sequence[tuple[Graph, PackedGraph]],
    stop: Stop | None = None,
) -> None:
    """Send the pieces of a binary, which holds these graphs in this order; then they are executable.

    Whoever is interrupted on the way, or stopped, leaves nothing of them on the device.
    """
    nbytes = sum(memoryview(part).nbytes for part in parts)
    if nbytes > SESSION_LIMIT_BYTES:
        names = ", ".join(repr(graph.name) for graph, _ in graphs)
        raise OutOfMemory(
            f"{bytes_in_words(nbytes)} for graph {names}; a session holds at most"
            f" {bytes_in_words(SESSION_LIMIT_BYTES)}",
            st.QNN_CONTEXT_ERROR_MEM_ALLOC,
        )
    buffer = SharedBuffer.holding(parts)
    try:
        wanted = [
            ms.WantedGraph(place=place, priority=int(graph.priority), core=graph.core)
            for place, (graph, _) in enumerate(graphs)
        ]
        request = ms.LoadGraphs(context=context._number, nbytes=buffer.nbytes, graphs=wanted)
        link, undo = context._link, _undo(context)
        reply = link.request(request, (buffer.fd,), undo, stop)
    finally:
        buffer.close()
    try:
        for (graph, packed), loaded in zip(graphs, reply.graphs, strict=True):
            graph._adopt_loaded(packed, loaded)
    except BaseException:
        rescue.post((link.tell, (undo(reply),)))
        raise


def _undo(context: Context) -> Undo:
    number = context._number
    return lambda reply: ms.FreeGraphs(context=number, graphs=[loaded.graph for loaded in reply.graphs])
