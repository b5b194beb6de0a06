"""Loading: stored graphs are made ready, or stored again in a form that is quickly made ready."""

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

# A graph, and numbers that identify its data, so that data shared with other graphs is recognised.
StoredGraph = tuple[PackedGraph, Sequence[int]]
# Called with the number of finished graphs, the number of all graphs, and the name of the next one.
Advance = Callable[[int, int, str], None]
# With acceleration: sessions are made on all threads, and this many graphs ask for sessions at a time.
_GRAPHS_AT_ONCE = 4


class Room:
    """The memory that one binary takes for its context. Used on the thread that loads, then on the loop's."""

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self._ledger = context.session.ledger
        self._weights = self._spill_fill = self._backup = self._io = 0
        self.held = HeldMemory(())
        self.prepare_only = context.prepare_only

    @property
    def largest_backup(self) -> int:
        """Size of the VTCM backup buffer of a graph that uses all VTCM."""
        return self._ledger.backup_bytes

    def take(self, needs: ContextNeeds) -> None:
        """Find room for the needs that the binary alone tells. Raises OutOfMemory, and takes nothing."""
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
        """Correct the sizes: the needs of graphs that were not compiled before are known only now."""
        spill_fill = self._spilled([loaded.spill_fill_bytes for _, loaded in ready])
        peaks = ((info, loaded.vtcm_peak_bytes) for info, loaded in ready)
        backup = sum(backup_of(info, peak, self.largest_backup) for info, peak in peaks)
        if self.prepare_only or (spill_fill, backup) == (self._spill_fill, self._backup):
            return
        self._spill_fill, self._backup = spill_fill, backup
        # The first graphs of a context decide its domain: larger needs may lead to another domain.
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
        """Graphs of a group use its buffer in turn; other graphs have their own."""
        return max(each, default=0) if self._context.group is not None else sum(each)


@dataclass(frozen=True, slots=True)
class Ready:
    """A graph that can run. ``program`` is its source; None if the source was a prepared form."""

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
    """Make stored graphs ready, all or none. ``advance`` may raise to end the loading early.

    Graphs share common weights and the forms that were made of them. ``room`` takes the memory for all graphs
    before the first one is made.
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
        room.correct([(graph.info, graph.loaded) for graph in ready])
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
            finished = [future for future in under_way if not future.cancelled() and not future.exception()]
            close_all([future.result() for future in finished])
            raise
    return ready


def packed_at(binary: ContextBinary, places: Sequence[int]) -> list[PackedGraph]:
    """Graphs of a binary by index. Raises InvalidArgument for no index, an unknown one, or one given twice."""
    names = binary.graph_names
    if not places or len(set(places)) != len(places) or not all(0 <= number < len(names) for number in places):
        raise InvalidArgument(f"graphs {list(places)} of a binary of {len(names)}; expected some, each once")
    return [binary.packed(names[number]) for number in places]


def make_one_ready(target: Target, packed: PackedGraph, options: ms.LoadOptions) -> Ready:
    """Make one graph ready again."""
    with Workshop(budget_bytes=options.read_budget, all_threads=options.accelerated) as workshop:
        ready = _make_ready(target, packed, workshop)
    if sum(section.nbytes for section in packed.stored_data) >= LARGE_BYTES:
        give_back_code()
    return ready


def close_all(ready: Sequence[Ready]) -> None:
    """Free graphs that are no longer wanted."""
    for graph in ready:
        graph.loaded.close()


def _only_prepared(target: Target, packed: PackedGraph, workshop: Workshop) -> Ready:
    """Check a graph that will only be stored in prepared form and never run here."""
    with error_context(graph=packed.name):
        program = packed.program()
        target.check(program)
        return Ready(packed.info(), Unloaded(), program)


def _make_ready(target: Target, packed: PackedGraph, workshop: Workshop) -> Ready:
    """Load the prepared form if it can be used, otherwise the program."""
    with error_context(graph=packed.name):
        info = packed.info()
        loaded = target.load_packed(packed, info, workshop) if isinstance(target, PreparingTarget) else None
        if loaded is not None:
            return Ready(info, loaded, None)
        program = packed.program()
        packed.check_rest()
        return Ready(info, target.load(program), program)


def pack_ready(target: Target, program: QnnProgram | None) -> SharedBuffer | None:
    """A binary with the program in the target's prepared form. None if there is no such form or no program."""
    if program is None or not isinstance(target, PreparingTarget):
        return None
    packed = target.pack(program)
    return None if packed is None else SharedBuffer.holding(pack_graphs([packed], BinaryInfo()))


class Scattered:
    """A binary some of whose pieces lie in the client's buffers, and are used there.

    A client that changes the contents of these buffers changes its own weights.
    """

    def __init__(self, rest: BinarySource, pieces: Sequence[tuple[int, int, memoryview]]) -> None:
        self.rest = rest
        self.nbytes = rest.nbytes
        self._pieces = pieces

    def read(self, begin: int, end: int, room: memoryview | None = None) -> memoryview:
        """A view of a buffer, or the bytes of the rest of the binary."""
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
        return [(self._packed, range(len(self._packed.stored_data)))]

    def close(self) -> None:
        """Do nothing: the client keeps the graph."""


class BinaryFile:
    """A binary behind a descriptor. Unchangeable memory is mapped; anything else is read piece by piece.

    If this process mapped a file that a client can truncate, that client could kill this process.
    """

    def __init__(self, fd: int) -> None:
        """Take over a descriptor. Raises InvalidArgument unless it is that of a file or of memory."""
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
        """Take these pieces from the client's buffers. Takes over the descriptors of usable buffers."""
        views: list[tuple[int, int, memoryview]] = []
        for part in pieces:
            if not 0 <= part.begin < part.end <= self.source.nbytes or part.offset < 0:
                raise InvalidArgument(f"a buffer for bytes {part.begin}..{part.end} of a binary")
            size = part.offset + part.end - part.begin
            buffer = SharedBuffer.attach(descriptors.pop(0), size, may_shrink=may_shrink)
            views.append((part.begin, part.end, buffer.view[part.offset : size].toreadonly()))
            buffer.close()
        if views:
            self.source = Scattered(self.source, views)

    @property
    def nbytes(self) -> int:
        """How large the whole binary is."""
        return self.source.nbytes

    def graphs(self, places: Sequence[int]) -> list[StoredGraph]:
        """Graphs of the binary by index. Raises BadBinary or InvalidArgument if the binary lacks one."""
        binary = open_binary(self.source)
        return [(graph, binary.data_of(graph.name)) for graph in packed_at(binary, places)]

    def close(self) -> None:
        """Let the file go. Bytes that were read stay, and so does mapped memory that is still in use."""
        source = self.source.rest if isinstance(self.source, Scattered) else self.source
        if isinstance(source, FileSource):
            source.close()
        self.source = MemorySource(b"")
