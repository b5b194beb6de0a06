"""Buffers that a client made and lent to a context that switches graphs: for the weights, and for the spill-fill.

The graph that is loaded has its own data there: what no other graph of the context has, as far as it fits.
Between the steps of an execution, values lie in the buffer for the spill-fill. A client that changes what lies
there changes its own results. In the ledger the buffers are the client's memory, like its inputs and outputs.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, WrongState
from openhtp.engine.protocol import LoadedProgram, SpillingProgram
from openhtp.memory.needs import Buffers, ContextNeeds
from openhtp.program.container import FileSection
from openhtp.program.packed import PackedGraph
from openhtp.program.sources import BinarySource
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import SharedBuffer, align


class LentBuffer(NamedTuple):
    """One buffer, and the number under which its memory is registered."""

    number: int
    memory: SharedBuffer


class LentBuffers:
    """The buffers of one context, by their use."""

    def __init__(self) -> None:
        self._by_use: dict[str, LentBuffer] = {}

    def lend(self, use: str, buffer: LentBuffer, needs: ContextNeeds) -> None:
        """Take on a buffer. Raises, and takes nothing, if there is one for this use or it is too small."""
        if use not in ms.BUFFER_USES:
            raise InvalidArgument(f"memory for {use!r}; expected one of {', '.join(ms.BUFFER_USES)}")
        known = self._by_use.get(use)
        if known is not None:
            raise WrongState(
                f"the context has memory {known.number} as its {use}; deregister that first",
                st.QNN_MEM_ERROR_ALREADY_REGISTERED,
            )
        try:
            wanted = {use.removesuffix("_buffer"): buffer.memory.nbytes}
            Buffers.chosen(needs, wanted.get("weights", 0), wanted.get("spill_fill", 0))
        except InvalidArgument as error:
            error.status = st.QNN_MEM_ERROR_INVALID_SHAPE
            raise
        self._by_use[use] = buffer

    def take_back(self, number: int) -> bool:
        """Give a buffer back; return whether there was one of that number."""
        for use, buffer in self._by_use.items():
            if buffer.number == number:
                del self._by_use[use]
                return True
        return False

    def has(self, number: int) -> bool:
        """Whether the memory of that number is one of the buffers."""
        return any(buffer.number == number for buffer in self._by_use.values())

    def beside(self, chosen: Buffers) -> Buffers:
        """These buffers, and those of the device's own that options chose."""
        weights, spill_fill = (self._nbytes(use) for use in (ms.WEIGHTS_BUFFER, ms.SPILL_FILL_BUFFER))
        return Buffers(
            weights=chosen.weights if weights is None else weights,
            spill_fill=chosen.spill_fill if spill_fill is None else spill_fill,
        )

    def with_weights(self, packed: PackedGraph, others: Iterable[PackedGraph]) -> PackedGraph:
        """The graph with its own data read into the buffer for weights, and used there."""
        buffer = self._by_use.get(ms.WEIGHTS_BUFFER)
        if buffer is None:
            return packed
        users = Counter(blob.place for graph in others for blob in set(graph.blobs))
        own = [blob for blob in packed.blobs if users[blob.place] <= 1]
        room = WeightsRoom(own, buffer.memory.view)
        blobs = (blob._replace(source=room) if room.has(blob) else blob for blob in packed.blobs)
        return dataclasses.replace(packed, blobs=tuple(blobs))

    def give_spill_room(self, loaded: LoadedProgram) -> None:
        """Let a program have what is between its steps in the buffer for the spill-fill, if there is one."""
        buffer = self._by_use.get(ms.SPILL_FILL_BUFFER)
        if buffer is not None and isinstance(loaded, SpillingProgram):
            loaded.spill_into(buffer.memory.view)

    def _nbytes(self, use: str) -> int | None:
        buffer = self._by_use.get(use)
        return None if buffer is None else buffer.memory.nbytes


class WeightsRoom:
    """Sections of a binary that are read into a buffer when they are first wanted, and stay there.

    Sections that lie one after the other in the binary do so in the buffer, too, as they may be read together.
    """

    def __init__(self, sections: Sequence[FileSection], buffer: memoryview) -> None:
        # By where a run of sections begins in the binary: its source, its end, and its place in the buffer.
        self._runs: dict[int, tuple[BinarySource, int, memoryview]] = {}
        self._filled: set[int] = set()
        end = 0
        for run in _runs(sections):
            begin, nbytes = align(end), run[-1].end - run[0].begin
            if begin + nbytes <= buffer.nbytes:
                self._runs[run[0].begin] = (run[0].source, run[-1].end, buffer[begin : begin + nbytes])
                end = begin + nbytes
        self.nbytes = max((last for _, last, _ in self._runs.values()), default=0)

    def has(self, section: FileSection) -> bool:
        """Whether there is room for a section."""
        return any(
            source is section.source and begin <= section.begin and section.end <= end
            for begin, (source, end, _) in self._runs.items()
        )

    def read(self, begin: int, end: int, room: memoryview | None = None) -> memoryview:
        """A view of the buffer; the run of sections is read into it now, if it was not before."""
        for first, (source, last, memory) in self._runs.items():
            if first <= begin and end <= last:
                if first not in self._filled:
                    data = source.read(first, last, memory)
                    memory[:] = data  # a source in memory gives a view of itself
                    self._filled.add(first)
                return memory[begin - first : end - first].toreadonly()
        raise InvalidArgument(f"bytes {begin}..{end} of a binary, which were given no room in the weights buffer")


def _runs(sections: Sequence[FileSection]) -> list[list[FileSection]]:
    """Sections in order, those together that lie without a gap in between."""
    runs: list[list[FileSection]] = []
    for section in sorted(sections, key=lambda each: each.begin):
        last = runs[-1][-1] if runs else None
        if last is not None and (section.begin, section.source) == (last.begin, last.source):
            continue
        if last is not None and section.begin == last.end and section.source is last.source:
            runs[-1].append(section)
        else:
            runs.append([section])
    return runs
