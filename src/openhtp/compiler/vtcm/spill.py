"""The walk through the kernels: results are put into VTCM, and older results go to DDR to make room.

The result that is needed last goes first. A result that does not fit even alone stays in part. The rest passes
through strips: it is written to DDR when it is made, and read back by each reader. But if the very next kernel is
the only reader, and both are computed strip by strip, the strips are handed over and nothing leaves VTCM.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from openhtp.program.placement import DmaTransfer, Move, Placement, RangeRole


@dataclass(frozen=True, slots=True)
class Lump:
    """A kernel as the walk sees it: bytes of its result, whose results it reads, what the client wrote or reads.

    ``strip`` is the VTCM that two pieces of it need: one is worked on while another moves.
    """

    nbytes: int
    reads: tuple[int, ...]
    loaded: int
    stored: int
    strip: int
    tiled: bool = False


@dataclass(slots=True)
class _Resident:
    offset: int
    nbytes: int
    first: int
    in_ddr: int


@dataclass(frozen=True, slots=True)
class Walked:
    """Where results lie, what moves, and whose results are handed over strip by strip."""

    placements: list[Placement]
    transfers: list[DmaTransfer]
    handed_over: set[int]


def walk(lumps: Sequence[Lump], arena: Arena) -> Walked:
    """Place every result, and tell what moves."""
    return _Walk(lumps, arena).run()


class _Walk:
    def __init__(self, lumps: Sequence[Lump], arena: Arena) -> None:
        self._lumps = lumps
        self._arena = arena
        self._here: dict[int, _Resident] = {}
        self._placements: list[Placement] = []
        self._transfers: list[DmaTransfer] = []
        self._handed_over: set[int] = set()
        self._uses: list[list[int]] = [[] for _ in lumps]
        for place, lump in enumerate(lumps):
            for maker in lump.reads:
                self._uses[maker].append(place)

    def run(self) -> Walked:
        for place, lump in enumerate(self._lumps):
            self._move(place, place, Move.LOAD, lump.loaded)
            strips = self._strips(place, lump)
            for maker in lump.reads:
                self._fill(place, maker)
            self._make(place, lump)
            self._move(place, place, Move.STORE, lump.stored)
            if strips is not None:
                self._drop(strips, place)
            for maker in (*lump.reads, place):
                if maker in self._here and not self._needed_after(maker, place):
                    self._leave(maker, place)
        return Walked(self._placements, self._transfers, self._handed_over)

    def _strips(self, place: int, lump: Lump) -> _Resident | None:
        """Find room for the pieces under way. There always is some: strips are small compared with VTCM."""
        size = aligned(lump.strip)
        if not size:
            return None
        offset = self._make_room(size, place, keep=lump.reads)
        if offset is None:
            offset = self._make_room(size, place, keep=())
        if offset is None:
            size = self._arena.largest
            offset = self._arena.take(size)
        return None if offset is None else _Resident(offset, size, place, 0)

    def _drop(self, strips: _Resident, place: int) -> None:
        self._arena.give(strips.offset, strips.nbytes)
        self._placements.append(Placement(place, RangeRole.STRIP, strips.offset, strips.nbytes, place, place))

    def _fill(self, place: int, maker: int) -> None:
        """Bring an input back: whole if there is room and another reader to come, otherwise in strips."""
        if maker in self._handed_over:
            return
        whole = self._lumps[maker].nbytes
        here = self._here.get(maker)
        if here is not None:
            self._move(place, maker, Move.FILL, max(0, whole - here.nbytes))
            return
        self._move(place, maker, Move.FILL, whole)
        if self._needed_after(maker, place):
            offset = self._arena.take(aligned(whole)) if whole else None
            if offset is not None:
                self._here[maker] = _Resident(offset, aligned(whole), place, whole)

    def _make(self, place: int, lump: Lump) -> None:
        if not lump.nbytes or not self._uses[place]:
            return
        size = aligned(lump.nbytes)
        offset = self._arena.take(size) if self._goes_on(place) else self._make_room(size, place, keep=lump.reads)
        if offset is None and self._goes_on(place):
            size = min(aligned(lump.strip), self._arena.largest)
            offset = self._arena.take(size) if size else None
            self._handed_over.add(place)
        elif offset is None:
            # In part: the rest goes through strips and waits in DDR.
            size = self._arena.largest
            offset = self._arena.take(size) if size else None
            self._move(place, place, Move.SPILL, lump.nbytes - size)
        if offset is not None:
            self._here[place] = _Resident(offset, size, place, max(0, lump.nbytes - size))

    def _goes_on(self, place: int) -> bool:
        """Whether the next kernel that makes anything is the only one to read this result, both in strips."""
        uses = self._uses[place]
        if len(uses) != 1 or not self._lumps[place].tiled or not self._lumps[uses[0]].tiled:
            return False
        return not any(lump.nbytes or lump.reads for lump in self._lumps[place + 1 : uses[0]])

    def _make_room(self, size: int, place: int, keep: tuple[int, ...]) -> int | None:
        """A range of ``size`` bytes. Evicts other results if necessary, first those that are needed last."""
        offset = self._arena.take(size)
        if offset is not None:
            return offset
        others = [maker for maker in self._here if maker not in keep and maker not in self._handed_over]
        others.sort(key=lambda maker: (-self._next_use(maker, place), maker))
        for maker in others:
            self._evict(maker, place)
            offset = self._arena.take(size)
            if offset is not None:
                return offset
        return None

    def _evict(self, maker: int, place: int) -> None:
        here = self._here[maker]
        whole = self._lumps[maker].nbytes
        self._move(place, maker, Move.SPILL, max(0, whole - here.in_ddr))
        # The present kernel takes the range, so its owner had it until the kernel before.
        self._leave(maker, place - 1)

    def _leave(self, maker: int, last: int) -> None:
        here = self._here.pop(maker)
        self._arena.give(here.offset, here.nbytes)
        if here.first <= last:
            self._placements.append(Placement(maker, RangeRole.RESULT, here.offset, here.nbytes, here.first, last))

    def _next_use(self, maker: int, place: int) -> int:
        return next((use for use in self._uses[maker] if use >= place), len(self._lumps))

    def _needed_after(self, maker: int, place: int) -> bool:
        return bool(self._uses[maker]) and self._uses[maker][-1] > place

    def _move(self, place: int, maker: int, move: Move, nbytes: int) -> None:
        if nbytes > 0:
            self._transfers.append(DmaTransfer(place, maker, move, nbytes))


ALIGNMENT = 2048
"""A block of the units: 8 by 8 by 32 bytes."""


def aligned(nbytes: int) -> int:
    """Bytes rounded up to whole blocks."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Arena:
    """A range of memory in blocks. ``best_fit`` takes the smallest hole that fits, otherwise the first."""

    def __init__(self, nbytes: int, *, best_fit: bool = True) -> None:
        self._holes: list[tuple[int, int]] = [(0, nbytes)] if nbytes else []
        self._best_fit = best_fit

    @property
    def largest(self) -> int:
        """The largest range that could be given out."""
        return max((size for _, size in self._holes), default=0)

    def take(self, nbytes: int) -> int | None:
        """The offset of a range of so many bytes, or None if no hole is large enough."""
        fitting = [(size, offset) for offset, size in self._holes if size >= nbytes]
        if not fitting:
            return None
        size, offset = min(fitting) if self._best_fit else min(fitting, key=lambda hole: hole[1])
        place = bisect.bisect_left(self._holes, (offset, 0))
        self._holes[place : place + 1] = [(offset + nbytes, size - nbytes)] if size > nbytes else []
        return offset

    def give(self, offset: int, nbytes: int) -> None:
        """Take a range back, and join it with the holes beside it."""
        place = bisect.bisect_left(self._holes, (offset, 0))
        end = offset + nbytes
        if place < len(self._holes) and self._holes[place][0] == end:
            end += self._holes.pop(place)[1]
        if place and sum(self._holes[place - 1]) == offset:
            offset = self._holes.pop(place - 1)[0]
            place -= 1
        self._holes.insert(place, (offset, end - offset))
