"""Weights are fetched ahead of their kernel into a ring at the end of VTCM: as far ahead as it holds them."""

from __future__ import annotations

from collections.abc import Sequence

from openhtp.compiler.vtcm.arena import ALIGNMENT, aligned
from openhtp.program.placement import Placement, Role

RING_SHARE = 0.5
"""Of the VTCM, at most."""


def ring_bytes(weights: Sequence[int], vtcm_bytes: int, share: float = RING_SHARE) -> int:
    """How large the ring is: all weights at most, and never more than its share."""
    whole = sum(aligned(nbytes) for nbytes in weights)
    return min(whole, aligned(int(vtcm_bytes * share)) - ALIGNMENT)


def lay_out(weights: Sequence[int], ring: int, offset: int) -> tuple[list[Placement], list[int]]:
    """Ranges for the weights of every kernel, and the kernel after which each can be fetched.

    Weights that are larger than the ring pass through all of it, piece by piece.
    """
    placements: list[Placement] = []
    free_after = [-1] * len(weights)
    head = 0
    for place, nbytes in enumerate(weights):
        if not nbytes:
            continue
        size = min(aligned(nbytes), ring)
        if head + size > ring:
            head = 0
        begin, head = offset + head, head + size
        # Of those whose place it takes, the one that was laid out last is the last to be used, too.
        blocking = (
            each.maker
            for each in reversed(placements)
            if each.offset < begin + size and begin < each.offset + each.nbytes
        )
        free_after[place] = next(blocking, -1)
        placements.append(Placement(place, Role.WEIGHTS, begin, size, free_after[place] + 1, place))
    return placements, free_after
