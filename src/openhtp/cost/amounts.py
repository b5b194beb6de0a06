"""The work of a network's kernels as arrays, at rates of one: for a SoC, numpy divides them by its rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openhtp.compiler.sizes import KernelSize
from openhtp.core.opcall import HELPER_KINDS, MATRIX_KINDS, MOVES_NOTHING, VECTOR_KINDS
from openhtp.core.precision import NumberFormat
from openhtp.cost.rates import Padding, Parameters, SocRates, prices
from openhtp.cost.timeline import Busy, Floats, Ints
from openhtp.program.placement import Move, Placed

# How much of what a kernel needs: amounts by name, which ``rates.py`` has a price for.

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
    "groups",
    "edge",
    "scalar",
)
"""Matrix kinds in giga multiply-accumulates, vector kinds in mega elements, additions in millions, bytes in MB."""
RETILED = "retiled"
"""Elements of a flat KV cache that are put into tiles; no published network has any, so it was not fitted."""
DMA_AMOUNTS = ("edge_dma", "spill")
"""Bytes of activations that the DMA moves: at the edges of the network, and where VTCM is too small."""

_BY_WINDOW = frozenset({"depthwise", "pool"})
# A gather reads the rows that it picks, and no others.
_BY_COUNT = frozenset({"image_layout", "image_norm", "reshape", "gather"})
_MOVING = frozenset({"transpose", "permute", "move", "concat"})
_BY_LARGER_SIDE = frozenset({"reduce"})


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
    """The work of the HMX and the HVX for a kernel."""
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
        amounts["groups"] = kernel.matrices if kernel.kind == "group" else 0.0
        amounts[RETILED] = kernel.retiled / MEGA
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
    if precision is NumberFormat.W8A8:
        amounts["scalar"] = kernel.scalar_ops / MEGA
    return {name: amount for name, amount in amounts.items() if amount}


@dataclass(frozen=True, slots=True)
class Speeds:
    """How fast the units of a setting are, against the rates of its SoC in burst mode: 1 is as fast.

    ``core`` is the clock of the threads that start kernels.
    """

    hmx: float = 1.0
    hvx: float = 1.0
    ddr: float = 1.0
    core: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Per kernel: microseconds at rates of one. ``which`` says in which of ``formats`` each is computed.

    ``launch`` is the part of the fixed cost that no vector unit makes shorter.
    """

    formats: tuple[NumberFormat, ...]
    which: Ints
    hmx: Floats
    hvx: Floats
    dma: Floats
    weights: Floats
    overhead: Floats
    launch: Floats
    moved_mb: float
    tiles: Floats
    free_after: Ints

    @classmethod
    def of(
        cls, kernels: Sequence[KernelSize], formats: Sequence[NumberFormat], placed: Placed, parameters: Parameters
    ) -> Amounts:
        """The amounts of kernels as they were placed."""
        distinct = tuple(each for each in NumberFormat if each in formats)
        price = {each: prices(rates_of_one(parameters), each, parameters) for each in distinct}
        table = np.zeros((UNITS, len(kernels)))
        launch = np.zeros(len(kernels))
        moved = 0.0
        for number, (amounts, form) in enumerate(
            zip(demands(kernels, formats, placed, parameters.padding), formats, strict=True)
        ):
            launch[number] = amounts.get(_LAUNCH, 0.0) * price[form][_LAUNCH]
            for name, amount in amounts.items():
                if name != _LAUNCH:
                    table[unit_of(name), number] += amount * price[form][name]
                if name in _IN_MB:
                    moved += amount
        return cls(
            formats=distinct,
            which=np.array([distinct.index(form) for form in formats], dtype=np.intp),
            hmx=table[_HMX],
            hvx=table[_HVX],
            dma=table[_DMA],
            weights=table[_WEIGHTS],
            overhead=table[_OVERHEAD],
            launch=launch,
            moved_mb=moved,
            tiles=np.array(placed.tiles, dtype=np.float64),
            free_after=np.array(placed.free_after, dtype=np.intp),
        )

    def busy(self, rates: Sequence[SocRates], speeds: Sequence[Speeds]) -> Busy:
        """Microseconds of every kernel, one row for each pair of rates and speeds."""
        tmacs = np.array([[each.tmacs[form.value] for form in self.formats] for each in rates])
        hmx, hvx, ddr, core = (
            np.array([[getattr(each, name)] for each in speeds]) for name in ("hmx", "hvx", "ddr", "core")
        )
        vector = np.array([[each.vector_speed] for each in rates]) * hvx
        halves = np.array([form is NumberFormat.FLOAT for form in self.formats])[self.which]
        dearer = np.where(halves, np.array([[each.half_cost] for each in rates]), 1.0)
        bandwidth = np.array([[each.ddr_gbs] for each in rates]) * ddr
        return Busy(
            hmx=self.hmx / (tmacs[:, self.which] * hmx),
            hvx=self.hvx * dearer / vector,
            dma=self.dma / bandwidth,
            weights=self.weights / bandwidth,
            overhead=self.overhead / vector + self.launch / core,
        )


UNITS = 5
"""The units that a kernel keeps busy: HMX, HVX, DMA for activations, DMA for weights, and its fixed cost."""
_HMX, _HVX, _DMA, _WEIGHTS, _OVERHEAD = range(UNITS)
_IN_MB = ("weights", *DMA_AMOUNTS)
_LAUNCH = "launch"
_FIXED = (_LAUNCH, "matrices", "groups", "edge")


def unit_of(name: str) -> int:
    """Which of them an amount keeps busy."""
    if name in MATRIX_KINDS:
        return _HMX
    if name in DMA_AMOUNTS:
        return _DMA
    return _WEIGHTS if name == "weights" else _OVERHEAD if name in _FIXED else _HVX


def rates_of_one(parameters: Parameters) -> SocRates:
    """Rates of 1 for everything."""
    words = next(iter(parameters.matrix.values()))
    return SocRates(soc="", launch_us=0.0, tmacs=dict.fromkeys(words, 1.0), vector_speed=1.0, ddr_gbs=1.0)
