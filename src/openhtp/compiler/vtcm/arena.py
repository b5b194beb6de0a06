"""Ranges of VTCM: given out where they fit, taken back, told apart by who has them."""

from __future__ import annotations

import bisect

ALIGNMENT = 2048
"""A block of the units: 8 by 8 by 32 bytes."""


def aligned(nbytes: int) -> int:
    """Bytes rounded up to whole blocks."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Arena:
    """A range of memory in blocks. ``best_fit`` takes the smallest hole that is large enough, else the first."""

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
