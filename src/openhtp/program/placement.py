"""The compiler's placement of data in VTCM, and the transfers between VTCM and DDR.

Kernels are known by their index in running order, which is the clock of a placement: a buffer exists from the
kernel ``first`` to the kernel ``last``, both included. A ``Schedule`` adds times.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass, field


class RangeRole(enum.Enum):
    """The use of a range of VTCM."""

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
    """A range of VTCM for kernel ``maker``: its result or a part of it, strips on their way, or its weights."""

    maker: int
    role: RangeRole
    offset: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class DmaTransfer:
    """Bytes that the DMA moves while kernel ``at`` runs: the result or the weights of kernel ``maker``."""

    at: int
    maker: int
    move: Move
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """All placements and transfers of one program. ``tiles`` has the number of tiles of each kernel.

    ``free_after`` has, for each kernel, the kernel that must end before its weights can be fetched, or -1.
    ``handed_over`` has the kernels whose result goes to the next one strip by strip, and never exists whole.
    """

    vtcm_bytes: int
    tiles: tuple[int, ...]
    placements: tuple[Placement, ...] = field(repr=False)
    transfers: tuple[DmaTransfer, ...] = field(repr=False)
    free_after: tuple[int, ...] = field(repr=False)
    handed_over: frozenset[int] = field(repr=False)

    @property
    def peak_bytes(self) -> int:
        """The most bytes in VTCM at once. They are not one range: weights lie apart, at the end of VTCM."""
        changes = [0] * (max((each.last for each in self.placements), default=0) + 2)
        for each in self.placements:
            changes[each.first] += each.nbytes
            changes[each.last + 1] -= each.nbytes
        return max(itertools.accumulate(changes))

    def moved(self, *moves: Move) -> int:
        """Bytes moved for these reasons."""
        return sum(each.nbytes for each in self.transfers if each.move in moves)
