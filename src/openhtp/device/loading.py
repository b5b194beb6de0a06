"""What loading is: stored graphs are made ready, or stored again with what makes them ready quickly."""

from __future__ import annotations

import functools
import logging
import mmap
import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from openhtp.core.errors import InvalidArgument, error_context
from openhtp.device.contexts import DeviceContext, Unloaded
from openhtp.device.target import PreparingTarget, Target
from openhtp.engine.code_pages import LARGE_BYTES, give_back_code
from openhtp.engine.protocol import LoadedProgram
from openhtp.engine.workshop import Workshop
from openhtp.memory.ledger import HeldMemory
from openhtp.memory.needs import ContextNeeds, backup_of, needs_of
from openhtp.program.binary import BinaryInfo, ContextBinary, open_binary, pack_graphs
from openhtp.program.packed import GraphInfo, PackedGraph
from openhtp.program.qnn_program import QnnProgram
from openhtp.program.sources import BinarySource, FileSource, MemorySource
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import SharedBuffer, is_unchangeable

log = logging.getLogger(__name__)

# A graph, and numbers that tell which of its data other graphs have, too.
StoredGraph = tuple[PackedGraph, Sequence[int]]
# Told how many are done, of how many, and which one is next.
Advance = Callable[[int, int, str], None]
# With acceleration: sessions are made on as many threads as there are, and this many graphs ask for some.
_GRAPHS_AT_ONCE = 4


class Room:
    """What one binary takes for its context. Used on the thread that makes graphs ready, then on the loop's."""

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self._ledger = context.session.ledger
        self._weights = self._spill_fill = self._backup = self._io = 0
        self.held = HeldMemory(())
        self.prepare_only = context.prepare_only

    @property
    def largest_backup(self) -> int:
        """Size of the VTCM backup buffer of a graph that has all VTCM there is."""
        return self._ledger.backup_bytes

    def take(self, needs: ContextNeeds) -> None:
        """Find a place for what is known from the binary alone. Raises OutOfMemory, and takes nothing."""
        context = self._context
        if context.prepare_only:
            return
        new = context.tenant.domain is None
        if new:
            names = ", ".join(graph.name for graph in needs.graphs[:3])
            more = f" and {len(needs.graphs) - 3} more" if len(needs.graphs) > 3 else ""
            context.tenant.label = f"context {context.number} ({names}{more})"
        self._weights = needs.weights_bytes
        self._spill_fill = self._spilled([graph.spill_fill_bytes for graph in needs.graphs])
        self._backup = needs.backup_bytes
        self._io = needs.io_bytes if context.io_room or context.keep_io_room else 0
        self._take(new=new)

    def correct(self, ready: Sequence[tuple[GraphInfo, LoadedProgram]]) -> None:
        """The graphs are ready, and only now is it known what those hold that had not been compiled before."""
        spill_fill = self._spilled([loaded.spill_fill_bytes for _, loaded in ready])
        peaks = ((info, loaded.vtcm_peak_bytes) for info, loaded in ready)
        backup = sum(backup_of(info, peak, self.largest_backup) for info, peak in peaks)
        if self.prepare_only or (spill_fill, backup) == (self._spill_fill, self._backup):
            return
        self._spill_fill, self._backup = spill_fill, backup
        # Its first graphs decide where a context is: with more to hold, that may be elsewhere.
        new = not self._context.graphs and not self._context.memories
        with self._ledger.undisturbed:
            self.held.give_back()
            if new:
                self._ledger.leave(self._context.tenant)
            self._take(new=new)

    def give_back(self) -> None:
        """The graphs are not wanted, or could not be made ready."""
        self.held.give_back()
        context = self._context
        if context.number not in context.session.contexts or not (context.graphs or context.memories):
            self._ledger.leave(context.tenant)

    def _take(self, *, new: bool) -> None:
        tenant = self._context.tenant
        sizes = self._weights, self._spill_fill, self._backup
        self.held = self._ledger.place(tenant, *sizes, room_for=self._io if new else 0)
        if new and self._context.keep_io_room:
            self._ledger.reserve(tenant, self._io)

    def _spilled(self, each: Sequence[int]) -> int:
        """Graphs of a group use its buffer in turn, others have their own."""
        return max(each, default=0) if self._context.group is not None else sum(each)


@dataclass(frozen=True, slots=True)
class Ready:
    """A graph that can run. ``program`` is what it was made from, None if that was a prepared form."""

    info: GraphInfo
    loaded: LoadedProgram
    program: QnnProgram | None


def make_ready(
    target: Target,
    stored: Sequence[StoredGraph],
    advance: Advance,
    room: Room,
    options: ms.LoadOptions = ms.AT_ONCE,
) -> list[Ready]:
    """Make stored graphs ready, all or none. ``advance`` may raise to end it early.

    What graphs have in common, weights and what was made of them, they share. ``room`` is asked for what they need
    before any is made.
    """
    graphs = [graph for graph, _ in stored]
    needs = needs_of(stored, largest_backup=room.largest_backup, compiled_next=True)
    room.take(needs)
    make = _only_prepared if room.prepare_only else _make_ready
    several = len(graphs) > 1
    with Workshop(
        budget_bytes=options.read_budget, all_threads=options.accelerated, shares_forms=several
    ) as workshop:
        work = [functools.partial(make, target, graph, workshop) for graph in graphs]
        done = _all_at_once if options.accelerated and several else _in_turn
        ready = done(work, lambda count: advance(count, len(graphs), graphs[count].name))
    try:
        room.correct([(one.info, one.loaded) for one in ready])
    except BaseException:
        close_all(ready)
        raise
    if needs.weights_bytes >= LARGE_BYTES:
        give_back_code()
    return ready


def _in_turn(work: Sequence[Callable[[], Ready]], advance: Callable[[int], None]) -> list[Ready]:
    ready: list[Ready] = []
    try:
        for done, make in enumerate(work):
            advance(done)
            ready.append(make())
    except BaseException:
        close_all(ready)
        raise
    return ready


def _all_at_once(work: Sequence[Callable[[], Ready]], advance: Callable[[int], None]) -> list[Ready]:
    ready: list[Ready] = []
    with ThreadPoolExecutor(_GRAPHS_AT_ONCE, "openhtp-graphs") as threads:
        under_way = [threads.submit(make) for make in work]
        try:
            for done, future in enumerate(under_way):
                advance(done)
                ready.append(future.result())
        except BaseException:
            threads.shutdown(cancel_futures=True)
            close_all([made.result() for made in under_way if not made.cancelled() and not made.exception()])
            raise
    return ready


def packed_at(binary: ContextBinary, places: Sequence[int]) -> list[PackedGraph]:
    """Graphs of a binary by place. Raises InvalidArgument unless they are there, some, and each once."""
    names = binary.graph_names
    if not places or len(set(places)) != len(places) or not all(0 <= place < len(names) for place in places):
        raise InvalidArgument(f"graphs {list(places)} of a binary of {len(names)}; expected some, each once")
    return [binary.packed(names[place]) for place in places]


def make_one_ready(target: Target, packed: PackedGraph, options: ms.LoadOptions) -> Ready:
    """Make one graph ready again."""
    with Workshop(budget_bytes=options.read_budget, all_threads=options.accelerated) as workshop:
        ready = _make_ready(target, packed, workshop)
    if sum(blob.record.nbytes for blob in packed.blobs) >= LARGE_BYTES:
        give_back_code()
    return ready


def close_all(ready: Sequence[Ready]) -> None:
    """Give back what nobody wants any more."""
    for one in ready:
        one.loaded.close()


def _only_prepared(target: Target, packed: PackedGraph, workshop: Workshop) -> Ready:
    """To be stored with what makes it ready quickly, and never to be run here."""
    with error_context(graph=packed.name):
        program = packed.program()
        target.check(program)
        return Ready(packed.info(), Unloaded(), program)


def _make_ready(target: Target, packed: PackedGraph, workshop: Workshop) -> Ready:
    """From the prepared form if that can be used, otherwise from the program."""
    with error_context(graph=packed.name):
        info = packed.info()
        loaded = target.load_packed(packed, info, workshop) if isinstance(target, PreparingTarget) else None
        if loaded is not None:
            return Ready(info, loaded, None)
        program = packed.program()
        packed.check_rest()
        return Ready(info, target.load(program), program)


def pack_ready(target: Target, program: QnnProgram | None) -> SharedBuffer | None:
    """The program as the target stores it, as a binary. None if it stores none, or there is no program."""
    if program is None or not isinstance(target, PreparingTarget):
        return None
    packed = target.pack(program)
    return None if packed is None else SharedBuffer.holding(pack_graphs([packed], BinaryInfo()))


class Scattered:
    """A binary of which some pieces lie in buffers of the client's, and are used there.

    What is in them the client could still change, and would then have other weights.
    """

    def __init__(self, rest: BinarySource, pieces: Sequence[tuple[int, int, memoryview]]) -> None:
        self.rest = rest
        self.nbytes = rest.nbytes
        self._pieces = pieces

    def read(self, begin: int, end: int, room: memoryview | None = None) -> memoryview:
        """A view of a buffer, or what the rest of the binary has there."""
        for first, last, view in self._pieces:
            if first <= begin and end <= last:
                return view[begin - first : end - first]
        return self.rest.read(begin, end, room)


class LentGraph:
    """A graph that a client in this process has just packed. It is used where it lies."""

    def __init__(self, packed: PackedGraph) -> None:
        self._packed = packed
        self.nbytes = packed.nbytes

    def graphs(self, places: Sequence[int]) -> list[StoredGraph]:
        """The one graph. Raises InvalidArgument if others are wanted."""
        if list(places) != [0]:
            raise InvalidArgument(f"graphs {list(places)} of one graph that was lent; expected [0]")
        return [(self._packed, range(len(self._packed.blobs)))]

    def close(self) -> None:
        """Nothing is held: its client keeps the graph."""


class BinaryFile:
    """Memory that nobody can write any more is mapped. Anything else might change, and is read piece by piece.

    Mapping a file that a client can cut would leave the life of this process to that client.
    """

    def __init__(self, fd: int) -> None:
        """Take over a descriptor. Raises InvalidArgument unless there is a file or memory behind it."""
        self.source: BinarySource
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode) or not about.st_size:
                raise InvalidArgument("the descriptor is neither shared memory nor a regular file with a binary")
            if is_unchangeable(fd):
                self.source = MemorySource(memoryview(mmap.mmap(fd, about.st_size, access=mmap.ACCESS_READ)))
                os.close(fd)
            else:
                self.source = FileSource(fd)
        except BaseException:
            os.close(fd)
            raise

    def overlay(
        self, pieces: Sequence[ms.ExternalPiece], descriptors: list[int], *, may_shrink: bool = False
    ) -> None:
        """Take these pieces from buffers of the client's. Takes the descriptors of those that can be used."""
        views: list[tuple[int, int, memoryview]] = []
        for piece in pieces:
            if not 0 <= piece.begin < piece.end <= self.source.nbytes or piece.offset < 0:
                raise InvalidArgument(f"a buffer for bytes {piece.begin}..{piece.end} of a binary")
            size = piece.offset + piece.end - piece.begin
            buffer = SharedBuffer.attach(descriptors.pop(0), size, may_shrink=may_shrink)
            views.append((piece.begin, piece.end, buffer.view[piece.offset : size].toreadonly()))
            buffer.close()
        if views:
            self.source = Scattered(self.source, views)

    @property
    def nbytes(self) -> int:
        """How large the whole binary is."""
        return self.source.nbytes

    def graphs(self, places: Sequence[int]) -> list[StoredGraph]:
        """Graphs of the binary by place. Raises BadBinary or InvalidArgument unless they are there."""
        binary = open_binary(self.source)
        return [(graph, binary.blobs_of(graph.name)) for graph in packed_at(binary, places)]

    def close(self) -> None:
        """Let it go. What was read stays, and so does what is mapped while anybody uses it."""
        source = self.source.rest if isinstance(self.source, Scattered) else self.source
        if isinstance(source, FileSource):
            source.close()
        self.source = MemorySource(b"")
