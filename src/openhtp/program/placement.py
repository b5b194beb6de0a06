"""Where the compiler put things in VTCM, and what it moves between there and DDR.

Kernels are known by their place in running order, which is the clock of a placement: a buffer is there from the
kernel ``first`` to the kernel ``last``, both included. Times come with a ``Schedule``.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass, field


class RangeRole(enum.Enum):
    """What a range of VTCM is used for."""

    RESULT = "result"
    STRIP = "strip"
    WEIGHTS = "weights"


class Move(enum.Enum):
    """Why the DMA moves bytes."""

    LOAD = "load"
    STORE = "store"
    SPILL = "spill"
    FILL = "fill"
    WEIGHTS = "weights"


@dataclass(frozen=True, slots=True)
class Placement:
    """A range of VTCM: the result of kernel ``maker`` or a part of it, strips passing through, or its weights."""

    maker: int
    role: RangeRole
    offset: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class DmaTransfer:
    """Bytes that the DMA moves while kernel ``at`` runs; ``maker`` is whose result, or whose weights, they are."""

    at: int
    maker: int
    move: Move
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """All of it for one program. ``tiles`` has for each kernel the pieces that it is computed in.

    ``free_after`` has the kernel that must be done before its weights can be fetched, -1 where nothing is in their
    way; ``handed_over`` the kernels whose result goes to the next one strip by strip, and is never there whole.
    """

    vtcm_bytes: int
    tiles: tuple[int, ...]
    placements: tuple[Placement, ...] = field(repr=False)
    transfers: tuple[DmaTransfer, ...] = field(repr=False)
    free_after: tuple[int, ...] = field(repr=False)
    handed_over: frozenset[int] = field(repr=False)

    @property
    def peak_bytes(self) -> int:
        """The most that is in VTCM at once. That is no one range: weights lie apart, at the end of VTCM."""
        changes = [0] * (max((each.last for each in self.placements), default=0) + 2)
        for each in self.placements:
            changes[each.first] += each.nbytes
            changes[each.last + 1] -= each.nbytes
        return max(itertools.accumulate(changes))

    def moved(self, *moves: Move) -> int:
        """Bytes moved for these reasons."""
        return sum(each.nbytes for each in self.transfers if each.move in moves)
