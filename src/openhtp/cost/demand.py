"""How much of what a kernel needs: amounts by name, which ``rates.py`` has a price for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from openhtp.compiler.sizes import KernelSize
from openhtp.core.opcall import HELPER_KINDS, MATRIX_KINDS, MOVES_NOTHING, VECTOR_KINDS
from openhtp.core.precision import NumberFormat
from openhtp.cost.rates import Padding
from openhtp.program.placement import Move, Placed

MEGA = 1e6
GIGA = 1e9

AMOUNTS = (
    *MATRIX_KINDS,
    *VECTOR_KINDS,
    *HELPER_KINDS,
    "weights",
    "edge_dma",
    "spill",
    "launch",
    "matrices",
    "edge",
)
"""Matrix kinds in giga multiply-accumulates, vector kinds in mega elements, the rest in megabytes."""
DMA_AMOUNTS = ("edge_dma", "spill")
"""What the DMA moves of activations: at the edges of the network, and where VTCM is too small."""

_BY_WINDOW = frozenset({"depthwise", "pool"})
_BY_COUNT = frozenset({"image_layout", "image_norm", "reshape", "softmax"})
_MOVING = frozenset({"transpose", "permute", "move", "concat"})
_BY_LARGER_SIDE = frozenset({"reduce", "gather"})


def demands(
    kernels: Sequence[KernelSize], formats: Sequence[NumberFormat], placed: Placed, padding: Padding
) -> list[Mapping[str, float]]:
    """Amounts of all kernels as they were placed; those that are zero are left out."""
    moved: list[dict[str, float]] = [{} for _ in kernels]
    for each in placed.transfers:
        name = _MOVED[each.move]
        moved[each.at][name] = moved[each.at].get(name, 0.0) + each.nbytes / MEGA
    return [
        {**computed(kernel, form, padding), **bytes_moved}
        for kernel, form, bytes_moved in zip(kernels, formats, moved, strict=True)
    ]


_MOVED = {
    Move.LOAD: "edge_dma",
    Move.STORE: "edge_dma",
    Move.SPILL: "spill",
    Move.FILL: "spill",
    Move.WEIGHTS: "weights",
}


def computed(kernel: KernelSize, precision: NumberFormat, padding: Padding) -> dict[str, float]:
    """What the HMX and the HVX have to do for a kernel."""
    wide = precision.activation_bytes - 1
    blocks = kernel.written * kernel.vector_padding[wide] / MEGA
    amounts = {
        "launch": 0.0 if kernel.kind == MOVES_NOTHING else 1.0,
        "edge": kernel.edge * precision.activation_bytes / MEGA,
    }
    if kernel.kind in MATRIX_KINDS:
        wasted = kernel.row_padding[wide] ** padding.rows * kernel.channel_padding**padding.channels
        amounts[kernel.kind] = kernel.macs * wasted / GIGA
        amounts["convert"] = blocks * kernel.planes
        amounts["stem_pack"] = kernel.packed / MEGA
        amounts["prelu"] = kernel.sloped * kernel.vector_padding[wide] / MEGA
        amounts["matrices"] = kernel.matrices if kernel.kind == "matmul" else 0.0
    elif kernel.kind in _BY_WINDOW:
        # Strides do not help: every pixel of the input passes through the registers.
        read = kernel.read * kernel.read_padding[wide] / MEGA if kernel.kind == "depthwise" else 0.0
        amounts[kernel.kind] = max(blocks, read) * kernel.taps
    elif kernel.kind in _BY_COUNT:
        amounts[kernel.kind] = kernel.written / MEGA
    elif kernel.kind in _MOVING:
        written = kernel.written * kernel.vector_padding[wide] ** padding.moved
        read = kernel.read * kernel.read_padding[wide] ** padding.moved
        amounts[kernel.kind] = max(written, read) / MEGA
    elif kernel.kind in _BY_LARGER_SIDE:
        amounts[kernel.kind] = max(kernel.read, kernel.written) / MEGA
    else:
        amounts[kernel.kind] = blocks
    return {name: amount for name, amount in amounts.items() if amount}
