"""Turns sizes of kernels into a placement: tile, lay out weights, walk and spill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openhtp.compiler.sizes import KernelSize, sizes_of, usual_formats
from openhtp.compiler.vtcm.spill import ALIGNMENT, Arena, Lump, aligned, walk
from openhtp.core.opcall import MOVES_NOTHING
from openhtp.core.precision import NumberFormat
from openhtp.program.htp_program import HtpProgram
from openhtp.program.placement import DmaTransfer, Move, Placed, Placement, RangeRole

# Weights are fetched ahead of their kernel into a ring at the end of VTCM, as far ahead as the ring has room.


RING_SHARE = 0.5
"""The ring's share of the VTCM, at most."""


def ring_bytes(weights: Sequence[int], vtcm_bytes: int, share: float = RING_SHARE) -> int:
    """The size of the ring: large enough for all weights, but never more than its share."""
    whole = sum(aligned(nbytes) for nbytes in weights)
    return min(whole, aligned(int(vtcm_bytes * share)) - ALIGNMENT)


def lay_out(weights: Sequence[int], ring: int, offset: int) -> tuple[list[Placement], list[int]]:
    """Ranges for the weights of every kernel, and the kernel after which each can be fetched.

    Weights that are larger than the ring pass through all of it, piece by piece.
    """
    placements: list[Placement] = []
    free_after = [-1] * len(weights)
    head = 0
    for index, nbytes in enumerate(weights):
        if not nbytes:
            continue
        size = min(aligned(nbytes), ring)
        if head + size > ring:
            head = 0
        begin, head = offset + head, head + size
        # Of the weights whose range it takes, those laid out last are also used last.
        blocking = (
            each.maker
            for each in reversed(placements)
            if each.offset < begin + size and begin < each.offset + each.nbytes
        )
        free_after[index] = next(blocking, -1)
        placements.append(Placement(index, RangeRole.WEIGHTS, begin, size, free_after[index] + 1, index))
    return placements, free_after


TILE_BYTES = 64 * 1024
"""A piece of a kernel is about this large: small enough to overlap the units, large enough to keep them busy."""
MOST_TILES = 16
DEFAULT_LEVEL = 2
"""The default of the option for the level of optimization."""
_WORKING_SHARE = 0.25
"""The share of the VTCM for two pieces of one kernel (the document: twice the strips fit into half of it)."""


@dataclass(frozen=True, slots=True)
class Effort:
    """A way of placing: the size of tiles, the choice of a hole, and the share of weights fetched ahead."""

    tile_bytes: int | None = TILE_BYTES
    best_fit: bool = True
    ring_share: float = RING_SHARE


EFFORTS = {
    # Only kernels that do not fit are cut, and the first hole is taken.
    1: (Effort(tile_bytes=None, best_fit=False),),
    2: tuple(Effort(ring_share=share) for share in (0.5, 0.25, 0.125)),
    3: tuple(
        Effort(best_fit=fit, ring_share=share) for share in (0.5, 0.375, 0.25, 0.125) for fit in (True, False)
    ),
}
"""The ways that a level of optimization tries. The one that moves the fewest bytes wins; of equals, the first."""
THOROUGH = 3
"""The level at which all ways are kept, so that a cost model may choose the fastest."""


def placements(
    kernels: Sequence[KernelSize], formats: Sequence[NumberFormat], vtcm_bytes: int, level: int = DEFAULT_LEVEL
) -> list[Placed]:
    """The placements among which to choose by time: one, except at the highest level."""
    chosen = place(kernels, formats, vtcm_bytes, level)
    if level < THOROUGH:
        return [chosen]
    tried = (_place(kernels, formats, vtcm_bytes, effort) for effort in EFFORTS[level])
    return [chosen, *(each for each in tried if each != chosen)]


def place(
    kernels: Sequence[KernelSize], formats: Sequence[NumberFormat], vtcm_bytes: int, level: int = DEFAULT_LEVEL
) -> Placed:
    """Tile every kernel and place its data, in the order of the kernels."""
    best = None
    for effort in EFFORTS[level]:
        tried = _place(kernels, formats, vtcm_bytes, effort)
        if best is None or spilled_bytes(tried) < spilled_bytes(best):
            best = tried
        if not spilled_bytes(best):
            break
    assert best is not None
    return best


def spilled_bytes(placed: Placed) -> int:
    """Bytes that are moved because VTCM is too small."""
    return placed.moved(Move.SPILL, Move.FILL)


def _place(
    kernels: Sequence[KernelSize], formats: Sequence[NumberFormat], vtcm_bytes: int, effort: Effort
) -> Placed:
    weights = [
        kernel.weights * form.weight_bytes if kernel.kind != "gather" else 0
        for kernel, form in zip(kernels, formats, strict=True)
    ]
    ring = ring_bytes(weights, vtcm_bytes, effort.ring_share)
    tiles, lumps = [], []
    for kernel, form in zip(kernels, formats, strict=True):
        touched = (kernel.read + kernel.written) * form.activation_bytes
        count = tiles_of(touched, kernel.strips, vtcm_bytes, effort.tile_bytes)
        tiles.append(count)
        lumps.append(_lump(kernel, form, touched, count, vtcm_bytes))
    in_ring, free_after = lay_out(weights, ring, vtcm_bytes - ring)
    walked = walk(lumps, Arena(vtcm_bytes - ring, best_fit=effort.best_fit))
    fetched = [DmaTransfer(at, at, Move.WEIGHTS, nbytes) for at, nbytes in enumerate(weights) if nbytes]
    return Placed(
        vtcm_bytes=vtcm_bytes,
        tiles=tuple(tiles),
        placements=(*walked.placements, *in_ring),
        transfers=(*walked.transfers, *fetched),
        handed_over=frozenset(walked.handed_over),
        free_after=tuple(free_after),
    )


def tiles_of(touched: int, strips: int, vtcm_bytes: int, tile_bytes: int | None = TILE_BYTES) -> int:
    """The number of pieces of a kernel that touches ``touched`` bytes and can be cut into ``strips``."""
    needed = -(-touched // max(1, int(vtcm_bytes * _WORKING_SHARE / 2)))
    wanted = min(MOST_TILES, -(-touched // tile_bytes)) if tile_bytes else 1
    return max(1, min(strips, max(needed, wanted)))


def _lump(kernel: KernelSize, form: NumberFormat, touched: int, tiles: int, vtcm_bytes: int) -> Lump:
    makes = kernel.kind != MOVES_NOTHING
    inside = kernel.written if makes else 0
    strip = min(2 * -(-touched // tiles), int(vtcm_bytes * _WORKING_SHARE)) if makes else 0
    return Lump(
        nbytes=inside * form.activation_bytes,
        reads=kernel.reads if makes else (),
        loaded=kernel.edge_in * form.activation_bytes,
        stored=kernel.edge_out * form.activation_bytes,
        strip=aligned(strip),
        tiled=kernel.strips > 1,
    )


def placed_of(program: HtpProgram, sizes: Sequence[KernelSize] | None = None) -> Placed:
    """The placement of a program; the first that comes into question where a cost model chooses among several."""
    sizes = sizes or sizes_of(program)
    vtcm_bytes = min(program.soc.vtcm_bytes, program.options.vtcm_bytes or program.soc.vtcm_bytes)
    return place(sizes, usual_formats(sizes), vtcm_bytes, program.options.optimization_level)


def vtcm_peak_bytes(program: HtpProgram, sizes: Sequence[KernelSize] | None = None) -> int:
    """The most bytes in VTCM at once, at most the graph's share of it.

    Where several placements are left to choose from, the largest counts: any of them may be chosen.
    """
    sizes = sizes or sizes_of(program)
    formats = [size.precision or NumberFormat.FLOAT for size in sizes]
    vtcm_bytes = min(program.soc.vtcm_bytes, program.options.vtcm_bytes or program.soc.vtcm_bytes)
    ways = placements(sizes, formats, vtcm_bytes, program.options.optimization_level)
    return max(placed.peak_bytes for placed in ways)
