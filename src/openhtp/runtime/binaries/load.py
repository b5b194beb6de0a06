"""Graphs go to the device: all that a context gets at once from one binary, and all or none."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openhtp.core import status as st, tidying
from openhtp.core.errors import OutOfMemory
from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.units import bytes_in_words
from openhtp.program.binary import ContextBinary, joined
from openhtp.program.packed import PackedGraph
from openhtp.program.sources import FileSource
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import unchangeable
from openhtp.runtime.binaries.opening import Check, chunks, go_on
from openhtp.runtime.links.link import Undo

if TYPE_CHECKING:
    from openhtp.runtime.binaries.data_provider import External
    from openhtp.runtime.calls.long_call import Stop
    from openhtp.runtime.links.link import Link
    from openhtp.runtime.objects.context import Context
    from openhtp.runtime.objects.graph import Graph


@dataclass(frozen=True, slots=True)
class Manner:
    """How a binary is loaded: bytes that may be read at once (0: all), and whether on all threads there are.

    ``switching``: graphs are loaded when they run, and those ``retained`` at once, the most important first.
    Buffers are what such graphs use in turn: so many bytes, -1 for what the largest needs, 0 for none.
    """

    read_budget: int = 0
    accelerated: bool = False
    switching: bool = False
    retained: Sequence[str] = ()
    spill_fill_buffer: int = 0
    weights_buffer: int = 0


@dataclass(frozen=True, slots=True)
class Sending:
    """Graphs on their way to the device: their places in the binary, bytes that they take, how it is sent."""

    places: Sequence[int]
    nbytes: int
    descriptor: Callable[[], AbstractContextManager[int]]
    external: External | None = None


def fresh(parts: Sequence[bytes | memoryview]) -> Sending:
    """A graph that was just packed, as the pieces of a binary of its own."""
    ends = list(itertools.accumulate(len(part) for part in parts))
    return Sending([0], ends[-1], lambda: _in_memory(ends[-1], zip([0, *ends], parts, strict=False)))


def stored(
    binary: ContextBinary, names: Sequence[str], external: External | None = None, check: Check = go_on
) -> Sending:
    """Graphs of a binary. A file is passed on as it is; of bytes, those that these graphs need are.

    ``external`` has some of them in buffers of the client's; ``check`` ends it early.
    """
    source, ranges = binary.source, binary.ranges(names)
    places = [binary.graph_names.index(name) for name in names]
    nbytes = sum(piece.end - piece.begin for piece in ranges)
    if isinstance(source, FileSource):
        return Sending(places, nbytes, lambda: contextlib.nullcontext(source.fileno()), external)
    apart = [] if external is None else [(piece.begin, piece.end) for piece in external.pieces]
    wanted = [
        piece for piece in ranges if not any(begin <= piece.begin and piece.end <= end for begin, end in apart)
    ]
    pieces = itertools.chain.from_iterable(
        chunks(piece.begin, piece.end, source.read, check) for piece in joined(wanted)
    )
    return Sending(places, nbytes, lambda: _in_memory(source.nbytes, pieces), external)


@contextlib.contextmanager
def _in_memory(nbytes: int, pieces: Iterable[tuple[int, bytes | memoryview]]) -> Iterator[int]:
    with contextlib.closing(unchangeable(nbytes, pieces)) as memory:
        yield memory.number


def load_graphs(
    context: Context,
    sending: Sending,
    graphs: Sequence[tuple[Graph, PackedGraph]],
    stop: Stop | None = None,
    manner: Manner | None = None,
    opening: ms.CreateContext | None = None,
) -> None:
    """Have the device load these graphs of what is sent; then they are executable.

    ``opening``: the context is made with them. Whoever is interrupted on the way, or stopped, leaves nothing of
    it all on the device.
    """
    if sending.nbytes > SESSION_LIMIT_BYTES:
        names = ", ".join(repr(graph.name) for graph, _ in graphs)
        raise OutOfMemory(
            f"{bytes_in_words(sending.nbytes)} for graph {names}; a session holds at most"
            f" {bytes_in_words(SESSION_LIMIT_BYTES)}",
            st.QNN_CONTEXT_ERROR_MEM_ALLOC,
        )
    wanted = [
        ms.WantedGraph(place=place, priority=int(graph.priority), core=graph.core)
        for place, (graph, _) in zip(sending.places, graphs, strict=True)
    ]
    manner = manner or Manner()
    places = {graph.name: place for place, (graph, _) in zip(sending.places, graphs, strict=True)}
    request = ms.LoadGraphs(
        context=context._number,
        nbytes=sending.nbytes,
        graphs=wanted,
        opening=opening,
        read_budget=manner.read_budget,
        accelerated=manner.accelerated,
        switching=manner.switching,
        retained=[places[name] for name in manner.retained],
        spill_fill_buffer=manner.spill_fill_buffer,
        weights_buffer=manner.weights_buffer,
        external=[] if sending.external is None else sending.external.pieces,
    )
    others = () if sending.external is None else sending.external.descriptors
    link = context._link
    undo = _free_graphs(context._number) if opening is None else free_context
    replies: list[ms.Reply] = []
    try:
        with sending.descriptor() as fd:
            replies.append(link.request(request, (fd, *others), undo, stop))
        context._number = replies[0].value
        for (graph, packed), loaded in zip(graphs, replies[0].graphs, strict=True):
            graph._adopt_loaded(packed, loaded)
    except BaseException:
        tidying.post((_take_back, (link, undo, replies, [graph for graph, _ in graphs])))
        raise


def _take_back(link: Link, undo: Undo, replies: Sequence[ms.Reply], graphs: Sequence[Graph]) -> None:
    """Whoever had graphs loaded was interrupted: unless they were adopted by then, the device frees them."""
    for reply in replies:
        numbers = [loaded.graph for loaded in reply.graphs]
        if [graph._number for graph in graphs if graph.is_finalized] != numbers:
            link.tell(undo(reply))


def free_context(reply: ms.Reply) -> ms.FreeContext:
    """What takes the making of a context back."""
    return ms.FreeContext(context=reply.value)


def _free_graphs(number: int) -> Undo:
    return lambda reply: ms.FreeGraphs(context=number, graphs=[loaded.graph for loaded in reply.graphs])
