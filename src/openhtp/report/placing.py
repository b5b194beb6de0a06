"""Puts spans on lanes so that none overlaps another: a trace viewer would draw them into each other."""

from __future__ import annotations

from collections import defaultdict


class Lanes:
    """Lanes of several things; spans of each must come by their begin."""

    def __init__(self) -> None:
        self._free: dict[object, list[int]] = defaultdict(list)

    def place(self, thing: object, start: int, end: int) -> int:
        """The first lane of a thing that is free from ``start`` on; it is taken until ``end``."""
        lanes = self._free[thing]
        for lane, free in enumerate(lanes):
            if free <= start:
                lanes[lane] = end
                return lane
        lanes.append(end)
        return len(lanes) - 1

    def used(self, thing: object) -> int:
        """How many lanes a thing has got."""
        return len(self._free[thing])
