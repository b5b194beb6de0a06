"""From sizes of kernels to what lies where: tile, lay out weights, walk and spill."""

from __future__ import annotations

from collections.abc import Sequence

from openhtp.compiler.sizes import KernelSize
from openhtp.compiler.vtcm.arena import Arena, aligned
from openhtp.compiler.vtcm.spill import Lump, walk
from openhtp.compiler.vtcm.weights import lay_out, ring_bytes
from openhtp.core.kinds import MOVES_NOTHING
from openhtp.core.number_format import NumberFormat
from openhtp.program.placement import Move, Placed, Transfer

TILE_BYTES = 128 * 1024
"""A piece of a kernel is about this large: small enough to overlap the units, large enough to keep them busy."""
MOST_TILES = 16
_WORKING_SHARE = 0.25
"""Of the VTCM, for two pieces under way of one kernel (the document: twice the strips fit into half of it)."""


def place(
    kernels: Sequence[KernelSize],
    formats: Sequence[NumberFormat],
    vtcm_bytes: int,
    *,
    best_fit: bool = True,
) -> Placed:
    """Tile every kernel and place what it needs, in the order that the kernels have."""
    weights = [
        kernel.weights * form.weight_bytes if kernel.kind != "gather" else 0
        for kernel, form in zip(kernels, formats, strict=True)
    ]
    ring = ring_bytes(weights, vtcm_bytes)
    tiles, lumps = [], []
    for kernel, form in zip(kernels, formats, strict=True):
        touched = (kernel.read + kernel.written) * form.activation_bytes
        count = tiles_of(touched, kernel.strips, vtcm_bytes)
        tiles.append(count)
        lumps.append(_lump(kernel, form, touched, count, vtcm_bytes))
    in_ring, free_after = lay_out(weights, ring, vtcm_bytes - ring)
    placements, transfers = walk(lumps, Arena(vtcm_bytes - ring, best_fit=best_fit))
    transfers += [Transfer(at, at, Move.WEIGHTS, nbytes) for at, nbytes in enumerate(weights) if nbytes]
    return Placed(
        vtcm_bytes=vtcm_bytes,
        tiles=tuple(tiles),
        placements=(*placements, *in_ring),
        transfers=tuple(transfers),
        free_after=tuple(free_after),
    )


def tiles_of(touched: int, strips: int, vtcm_bytes: int) -> int:
    """Pieces of a kernel that touches so many bytes and can be cut into so many strips."""
    needed = -(-touched // max(1, int(vtcm_bytes * _WORKING_SHARE / 2)))
    wanted = min(MOST_TILES, -(-touched // TILE_BYTES))
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
    )
