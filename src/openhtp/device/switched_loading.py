"""Loading a binary whose graphs are switched: some of them at once, the others when they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from openhtp.core.errors import InvalidArgument, error_context
from openhtp.device.contexts import DeviceContext, DeviceGraph, Unloaded
from openhtp.device.loading import Advance, Manner, Ready, close_all, make_one_ready, packed_at
from openhtp.device.room import Room
from openhtp.device.switching import Switcher
from openhtp.device.target import Target
from openhtp.memory.ledger import HeldMemory
from openhtp.memory.needs import Buffers, ContextNeeds, needs_of
from openhtp.memory.switching import loaded_first
from openhtp.program.binary import ContextBinary, open_binary
from openhtp.program.sources import BinarySource
from openhtp.rpc import messages as ms

if TYPE_CHECKING:
    from openhtp.device.core import DeviceCore


class SwitchedRoom(Room):
    """What a binary takes of which some graphs are loaded: data that they share, and each of them."""

    def __init__(self, context: DeviceContext, asked: ms.LoadGraphs, manner: Manner) -> None:
        super().__init__(context)
        self._asked = asked
        self._places = asked.retained
        self._manner = manner
        self._retained: tuple[str, ...] = ()
        self._each: dict[str, HeldMemory] = {}
        self._binary: ContextBinary | None = None
        self._needs = ContextNeeds(graphs=())
        self._buffers = Buffers()

    def make_first_ready(
        self, target: Target, source: BinarySource, places: Sequence[int], advance: Advance
    ) -> list[Ready]:
        """Make those ready that are loaded at once; the others are there, but not loaded."""
        binary = self._binary = open_binary(source)
        graphs = packed_at(binary, places)
        if any(place not in places for place in self._places):
            raise InvalidArgument(f"graphs {list(self._places)} are to be retained; given are {list(places)}")
        self._retained = tuple(binary.graph_names[place] for place in self._places)
        stored = [(graph, binary.blobs_of(graph.name)) for graph in graphs]
        self._needs = needs_of(stored, largest_backup=self.largest_backup)
        self._buffers = Buffers.chosen(self._needs, self._asked.weights_buffer, self._asked.spill_fill_buffer)
        first = loaded_first([graph.name for graph in graphs], self._retained)
        self._take_first(first)
        ready: list[Ready] = []
        try:
            for done, graph in enumerate(graphs):
                with error_context(graph=graph.name):
                    if graph.name in first:
                        advance(done, len(graphs), graph.name)
                        ready.append(make_one_ready(target, graph, self._manner))
                    else:
                        ready.append(Ready(graph.info(), Unloaded(), None))
        except BaseException:
            close_all(ready)
            raise
        return ready

    def _take_first(self, first: Sequence[str]) -> None:
        beside = [self._buffers.beside(self._needs.graph(name)) for name in first]
        parts = [(graph.own_bytes, graph.spill_fill_bytes, graph.backup_bytes) for graph in beside]
        held = (self._needs.shared_bytes + (self._buffers.weights or 0), self._buffers.spill_fill or 0, 0)
        context = self._context
        context.tenant.label = f"context {context.number} (switching {', '.join(first[:3])})"
        io_bytes = self._needs.io_bytes if context.io_room else 0
        shared, *each = self._ledger.place_each(context.tenant, [held, *parts], room_for=io_bytes)
        self.held, self._each = shared, dict(zip(first, each, strict=True))

    def begin(
        self,
        core: DeviceCore,
        graphs: Sequence[DeviceGraph],
        ready: Sequence[Ready],
        close_file: Callable[[], None],
    ) -> None:
        """The scheduler knows the graphs: from now on they are switched."""
        assert self._binary is not None
        switcher = Switcher(
            core,
            self._context,
            self._binary,
            (self._needs, self._buffers),
            self._retained,
            self._manner,
            close_file,
        )
        self._context.switcher = switcher
        for graph, made in zip(graphs, ready, strict=True):
            switcher.add(graph)
            held = self._each.get(graph.name)
            if held is not None:
                switcher.adopt(graph, made, held)

    def give_back(self) -> None:
        """The graphs are not wanted, or could not be made ready."""
        for held in self._each.values():
            held.give_back()
        super().give_back()
