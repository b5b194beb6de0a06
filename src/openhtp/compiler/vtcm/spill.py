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
    """A kernel for the walk: bytes of its result, the kernels that it reads from, bytes of the client's tensors.

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
    """Place every result, and return the placement with all transfers."""
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
        for number, lump in enumerate(lumps):
            for maker in lump.reads:
                self._uses[maker].append(number)

    def run(self) -> Walked:
        for number, lump in enumerate(self._lumps):
            self._move(number, number, Move.LOAD, lump.loaded)
            strips = self._strips(number, lump)
            for maker in lump.reads:
                self._fill(number, maker)
            self._make(number, lump)
            self._move(number, number, Move.STORE, lump.stored)
            if strips is not None:
                self._drop(strips, number)
            for maker in (*lump.reads, number):
                if maker in self._here and not self._needed_after(maker, number):
                    self._leave(maker, number)
        return Walked(self._placements, self._transfers, self._handed_over)

    def _strips(self, number: int, lump: Lump) -> _Resident | None:
        """Find room for the pieces under way. There always is some: strips are small compared with VTCM."""
        size = aligned(lump.strip)
        if not size:
            return None
        offset = self._make_room(size, number, keep=lump.reads)
        if offset is None:
            offset = self._make_room(size, number, keep=())
        if offset is None:
            size = self._arena.largest
            offset = self._arena.take(size)
        return None if offset is None else _Resident(offset, size, number, 0)

    def _drop(self, strips: _Resident, number: int) -> None:
        self._arena.give(strips.offset, strips.nbytes)
        self._placements.append(Placement(number, RangeRole.STRIP, strips.offset, strips.nbytes, number, number))

    def _fill(self, number: int, maker: int) -> None:
        """Bring an input back: whole if there is room and another reader to come, otherwise in strips."""
        if maker in self._handed_over:
            return
        whole = self._lumps[maker].nbytes
        here = self._here.get(maker)
        if here is not None:
            self._move(number, maker, Move.FILL, max(0, whole - here.nbytes))
            return
        self._move(number, maker, Move.FILL, whole)
        if self._needed_after(maker, number):
            offset = self._arena.take(aligned(whole)) if whole else None
            if offset is not None:
                self._here[maker] = _Resident(offset, aligned(whole), number, whole)

    def _make(self, number: int, lump: Lump) -> None:
        if not lump.nbytes or not self._uses[number]:
            return
        size = aligned(lump.nbytes)
        offset = (
            self._arena.take(size) if self._goes_on(number) else self._make_room(size, number, keep=lump.reads)
        )
        if offset is None and self._goes_on(number):
            size = min(aligned(lump.strip), self._arena.largest)
            offset = self._arena.take(size) if size else None
            self._handed_over.add(number)
        elif offset is None:
            # In part: the rest goes through strips and waits in DDR.
            size = self._arena.largest
            offset = self._arena.take(size) if size else None
            self._move(number, number, Move.SPILL, lump.nbytes - size)
        if offset is not None:
            self._here[number] = _Resident(offset, size, number, max(0, lump.nbytes - size))

    def _goes_on(self, number: int) -> bool:
        """Whether the next kernel that makes anything is the only one to read this result, both in strips."""
        uses = self._uses[number]
        if len(uses) != 1 or not self._lumps[number].tiled or not self._lumps[uses[0]].tiled:
            return False
        return not any(lump.nbytes or lump.reads for lump in self._lumps[number + 1 : uses[0]])

    def _make_room(self, size: int, number: int, keep: tuple[int, ...]) -> int | None:
        """A range of ``size`` bytes. Evicts other results if necessary, first those that are needed last."""
        offset = self._arena.take(size)
        if offset is not None:
            return offset
        others = [maker for maker in self._here if maker not in keep and maker not in self._handed_over]
        others.sort(key=lambda maker: (-self._next_use(maker, number), maker))
        for maker in others:
            self._evict(maker, number)
            offset = self._arena.take(size)
            if offset is not None:
                return offset
        return None

    def _evict(self, maker: int, number: int) -> None:
        here = self._here[maker]
        whole = self._lumps[maker].nbytes
        self._move(number, maker, Move.SPILL, max(0, whole - here.in_ddr))
        # The present kernel takes the range, so its owner had it until the kernel before.
        self._leave(maker, number - 1)

    def _leave(self, maker: int, last: int) -> None:
        here = self._here.pop(maker)
        self._arena.give(here.offset, here.nbytes)
        if here.first <= last:
            self._placements.append(Placement(maker, RangeRole.RESULT, here.offset, here.nbytes, here.first, last))

    def _next_use(self, maker: int, number: int) -> int:
        return next((use for use in self._uses[maker] if use >= number), len(self._lumps))

    def _needed_after(self, maker: int, number: int) -> bool:
        return bool(self._uses[maker]) and self._uses[maker][-1] > number

    def _move(self, number: int, maker: int, move: Move, nbytes: int) -> None:
        if nbytes > 0:
            self._transfers.append(DmaTransfer(number, maker, move, nbytes))


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
        """The offset of a range of ``nbytes`` bytes, or None if no hole is large enough."""
        fitting = [(size, offset) for offset, size in self._holes if size >= nbytes]
        if not fitting:
            return None
        size, offset = min(fitting) if self._best_fit else min(fitting, key=lambda hole: hole[1])
        index = bisect.bisect_left(self._holes, (offset, 0))
        self._holes[index : index + 1] = [(offset + nbytes, size - nbytes)] if size > nbytes else []
        return offset

    def give(self, offset: int, nbytes: int) -> None:
        """Take a range back, and join it with the holes beside it."""
        index = bisect.bisect_left(self._holes, (offset, 0))
        end = offset + nbytes
        if index < len(self._holes) and self._holes[index][0] == end:
            end += self._holes.pop(index)[1]
        if index and sum(self._holes[index - 1]) == offset:
            offset = self._holes.pop(index - 1)[0]
            index -= 1
        self._holes.insert(index, (offset, end - offset))
