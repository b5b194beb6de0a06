"""Sends graphs to the device: all those that a context gets at once from one binary, all or none."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openhtp.core import status as st, tidying
from openhtp.core.errors import OutOfMemory
from openhtp.core.files import Descriptor
from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.units import bytes_in_words
from openhtp.program.binary import ContextBinary, joined
from openhtp.program.packed import PackedGraph
from openhtp.program.qnn_program import QnnProgram
from openhtp.program.sources import FileSource
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import unchangeable
from openhtp.runtime.binaries.opening import Check, chunks, go_on
from openhtp.runtime.links.link import HandedGraph, Undo
from openhtp.runtime.objects.loaded_graph import LoadedGraph
from openhtp.runtime.objects.open_context import OpenContext, free_context

if TYPE_CHECKING:
    from openhtp.runtime.binaries.data_provider import ClientBuffers
    from openhtp.runtime.calls.long_call import CallStop
    from openhtp.runtime.links.link import Link
    from openhtp.runtime.objects.graph import Graph


@dataclass(frozen=True, slots=True)
class GraphOrder:
    """A graph that the device should load. ``adopt`` makes it executable once it is loaded."""

    graph: Graph
    packed: PackedGraph
    adopt: Callable[[LoadedGraph], None]
    program: QnnProgram | None = None


@dataclass(frozen=True, slots=True)
class GraphShipment:
    """Graphs on their way to the device: their places in the binary, and how the device gets the binary."""

    places: Sequence[int]
    handing_over: Callable[[], AbstractContextManager[HandedGraph]]
    client_buffers: ClientBuffers | None = None


def fresh(link: Link, packed: PackedGraph) -> GraphShipment:
    """A graph that was just packed."""
    return GraphShipment([0], lambda: link.handing_over(packed))


def stored(
    binary: ContextBinary, names: Sequence[str], buffers: ClientBuffers | None = None, check: Check = go_on
) -> GraphShipment:
    """Graphs of a binary. A file is passed on as it is; of bytes, only those that these graphs need.

    The client's ``buffers`` have some of the bytes; ``check`` ends the copying early.
    """
    source, ranges = binary.source, binary.ranges(names)
    places = [binary.graph_names.index(name) for name in names]
    nbytes = sum(part.end - part.begin for part in ranges)
    if isinstance(source, FileSource):
        handed = HandedGraph(nbytes, (source.fileno(),))
        return GraphShipment(places, lambda: contextlib.nullcontext(handed), buffers)
    apart = [] if buffers is None else [(part.begin, part.end) for part in buffers.pieces]
    wanted = [part for part in ranges if not any(begin <= part.begin and part.end <= end for begin, end in apart)]
    pieces = itertools.chain.from_iterable(
        chunks(part.begin, part.end, source.read, check) for part in joined(wanted)
    )
    return GraphShipment(places, lambda: _in_memory(nbytes, unchangeable(source.nbytes, pieces)), buffers)


@contextlib.contextmanager
def _in_memory(nbytes: int, memory: Descriptor) -> Iterator[HandedGraph]:
    with contextlib.closing(memory):
        yield HandedGraph(nbytes, (memory.number,))


def load_graphs(
    context: OpenContext,
    sending: GraphShipment,
    orders: Sequence[GraphOrder],
    stop: CallStop | None = None,
    options: ms.LoadOptions = ms.AT_ONCE,
    opening: ms.CreateContext | None = None,
) -> None:
    """Have the device load these graphs; then they are executable.

    With ``opening``, the context is made in the same request. A call that is interrupted or stopped leaves nothing
    on the device.
    """
    buffers = sending.client_buffers
    others = () if buffers is None else buffers.descriptors
    undo = _free_graphs(context.number) if opening is None else free_context
    replies: list[ms.Reply] = []
    try:
        with sending.handing_over() as handed:
            request = ms.LoadGraphs(
                context=context.number,
                nbytes=_within_a_session(handed.nbytes, orders),
                graphs=[
                    ms.WantedGraph(place=number, priority=int(order.graph.priority), core=order.graph.core)
                    for number, order in zip(sending.places, orders, strict=True)
                ],
                opening=opening,
                options=options,
                external=[] if buffers is None else buffers.pieces,
                lent=handed.lent,
                packages=_packages(context, orders),
            )
            replies.append(context.link.request(request, (*handed.descriptors, *others), undo, stop))
        context.number = replies[0].value
        for order, ready in zip(orders, replies[0].graphs, strict=True):
            graph = order.graph
            order.adopt(
                LoadedGraph(
                    context,
                    order.packed,
                    ready,
                    tensors=graph.tensors,
                    options=graph.options,
                    program=order.program,
                )
            )
    except BaseException:
        tidying.post((_take_back, (context.link, undo, replies, [order.graph for order in orders])))
        raise


def _packages(context: OpenContext, orders: Sequence[GraphOrder]) -> list[ms.WantedPackage]:
    """The users' op packages that the device needs for these graphs."""
    versions = {name: version for order in orders for name, version in order.packed.packages.items()}
    return context.device.backend.op_packages.wanted(versions) if versions else []


def _within_a_session(nbytes: int, orders: Sequence[GraphOrder]) -> int:
    if nbytes > SESSION_LIMIT_BYTES:
        names = ", ".join(repr(order.graph.name) for order in orders)
        raise OutOfMemory(
            f"{bytes_in_words(nbytes)} for graph {names}; a session holds at most"
            f" {bytes_in_words(SESSION_LIMIT_BYTES)}",
            st.QNN_CONTEXT_ERROR_MEM_ALLOC,
        )
    return nbytes


def _take_back(link: Link, undo: Undo, replies: Sequence[ms.Reply], graphs: Sequence[Graph]) -> None:
    """A call that loaded graphs was interrupted: unless the graphs were adopted by then, the device frees them."""
    adopted = [graph.loaded.number for graph in graphs if graph.is_finalized and graph.loaded is not None]
    for reply in replies:
        if adopted != [ready.graph for ready in reply.graphs]:
            link.tell(undo(reply))


def _free_graphs(number: int) -> Undo:
    return lambda reply: ms.FreeGraphs(context=number, graphs=[ready.graph for ready in reply.graphs])
