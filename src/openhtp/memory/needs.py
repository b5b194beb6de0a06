"""The needs of graphs and contexts in a process domain, in bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument
from openhtp.program.packed import GraphInfo, PackedGraph

_PAGE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNeeds:
    """One graph: data that no other graph of its context has, its buffers, its inputs and outputs.

    Its spill-fill buffer has what does not fit into its VTCM, its backup buffer has what is there while it yields.
    """

    name: str
    own_bytes: int
    spill_fill_bytes: int = 0
    backup_bytes: int = 0
    io_bytes: int = 0

    @property
    def loaded_bytes(self) -> int:
        """The bytes that come and go with the graph itself."""
        return self.own_bytes + self.spill_fill_bytes + self.backup_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextNeeds:
    """The graphs of a context, and data that several of them have in common."""

    graphs: tuple[GraphNeeds, ...]
    shared_bytes: int = 0

    @property
    def weights_bytes(self) -> int:
        """Data of all graphs, what is shared counted once."""
        return self.shared_bytes + sum(graph.own_bytes for graph in self.graphs)

    @property
    def spill_fill_bytes(self) -> int:
        """Spill-fill buffers of all graphs: each has its own."""
        return sum(graph.spill_fill_bytes for graph in self.graphs)

    @property
    def largest_spill_fill(self) -> int:
        """The size of one buffer that all graphs use in turn."""
        return max((graph.spill_fill_bytes for graph in self.graphs), default=0)

    @property
    def backup_bytes(self) -> int:
        """VTCM backup buffers of all graphs: each has its own."""
        return sum(graph.backup_bytes for graph in self.graphs)

    @property
    def io_bytes(self) -> int:
        """Inputs and outputs of all graphs, once each."""
        return sum(graph.io_bytes for graph in self.graphs)

    def graph(self, name: str) -> GraphNeeds:
        """One of them."""
        return next(graph for graph in self.graphs if graph.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Buffers that graphs use in turn, as long as their context lives. None: each graph has memory of its own."""

    weights: int | None = None
    spill_fill: int | None = None

    @classmethod
    def chosen(cls, needs: ContextNeeds, weights: int, spill_fill: int) -> Buffers:
        """As options say it: a number of bytes, -1 for what the largest graph needs, 0 for none.

        Raises InvalidArgument if a graph needs more than was chosen.
        """
        return cls(
            weights=_buffer("weights_buffer", weights, [(g.name, g.own_bytes) for g in needs.graphs]),
            spill_fill=_buffer(
                "spill_fill_buffer", spill_fill, [(g.name, g.spill_fill_bytes) for g in needs.graphs]
            ),
        )

    def beside(self, graph: GraphNeeds) -> GraphNeeds:
        """The bytes that a graph still needs beside them."""
        return replace(
            graph,
            own_bytes=graph.own_bytes if self.weights is None else 0,
            spill_fill_bytes=graph.spill_fill_bytes if self.spill_fill is None else 0,
        )

    def check_spill(self, name: str, nbytes: int) -> None:
        """A graph is ready, and only now is it known what it spills."""
        if self.spill_fill is not None and nbytes > self.spill_fill:
            raise _too_small("spill_fill_buffer", self.spill_fill, name, nbytes)


def _buffer(option: str, chosen: int, each: Sequence[tuple[str, int]]) -> int | None:
    if chosen == 0 or not each:
        return None
    name, most = max(each, key=lambda item: item[1])
    if 0 < chosen < most:
        raise _too_small(option, chosen, name, most)
    return most if chosen < 0 else chosen


def _too_small(option: str, chosen: int, name: str, nbytes: int) -> InvalidArgument:
    return InvalidArgument(
        f"{option} is {chosen} bytes; graph {name!r} needs {nbytes}: give that, or -1 for what the largest needs",
        st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
    )


def vtcm_of(info: GraphInfo, vtcm_bytes: int) -> int:
    """VTCM of a graph on a chip that has ``vtcm_bytes`` (0 if that is unknown)."""
    wanted = info.options.vtcm_bytes or vtcm_bytes
    return min(wanted, vtcm_bytes or wanted)


def backup_of(info: GraphInfo, peak_bytes: int | None, vtcm_bytes: int) -> int:
    """The bytes that a graph saves when it yields: the most that it has in VTCM at once, in whole pages.

    A graph that was not compiled (its peak is None) may have all of its VTCM in use.
    """
    most = vtcm_of(info, vtcm_bytes)
    if peak_bytes is None:
        return most
    saved = -(-peak_bytes // _PAGE) * _PAGE
    return min(saved, most or saved)


def needs_of(
    graphs: Sequence[tuple[PackedGraph, Sequence[int]]], *, largest_backup: int, compiled_next: bool = False
) -> ContextNeeds:
    """The needs of stored graphs, each given with numbers that identify equal data of different graphs.

    ``largest_backup`` is the size of the VTCM backup buffer of a graph that has all VTCM there is.
    With ``compiled_next``, graphs are compiled before their memory is held; until then, a graph that is not
    compiled yet counts no backup.
    """
    users = Counter(number for _, numbers in graphs for number in set(numbers))
    sizes: dict[int, int] = {}
    graph_needs = []
    for packed, numbers in graphs:
        blob_sizes = dict(zip(numbers, (section.nbytes for section in packed.stored_data), strict=True))
        sizes |= blob_sizes
        info, peak = packed.info(), packed.vtcm_peak_bytes
        graph_needs.append(
            GraphNeeds(
                name=packed.name,
                own_bytes=_pages(sum(nbytes for number, nbytes in blob_sizes.items() if users[number] == 1)),
                spill_fill_bytes=packed.spill_fill_bytes,
                backup_bytes=0 if peak is None and compiled_next else backup_of(info, peak, largest_backup),
                io_bytes=sum(spec.nbytes for spec in (*info.inputs, *info.outputs)),
            )
        )
    shared = sum(nbytes for number, nbytes in sizes.items() if users[number] > 1)
    return ContextNeeds(graphs=tuple(graph_needs), shared_bytes=shared)


def _pages(nbytes: int) -> int:
    """A size in whole pages, at least one: a graph without data is there, too."""
    return max(1, -(-nbytes // _PAGE)) * _PAGE
