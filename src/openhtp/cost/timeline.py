"""How long kernels take one after the other, with all overlaps. No other module adds up times.

A kernel is cut into tiles, which pass through the DMA, the HMX and the HVX as through a pipeline: while one tile
is multiplied, the results of the one before are converted and the next one's data come. So it takes as long as its
busiest unit, and one tile of the others. Weights come ahead of their kernel, as early as the ring in VTCM has room
for them; a kernel begins with their first piece, and ends no earlier than a tile after the last.

All functions work on arrays of rows by kernels: a row is a network on a SoC, or one setting of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Microseconds of every kernel on every unit, rows by kernels. ``dma`` is about activations only."""

    hmx: Floats
    hvx: Floats
    dma: Floats
    weights: Floats
    overhead: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimeline:
    """Ends of all kernels and of the fetching of their weights, and each kernel's own time, rows by kernels."""

    own: Floats
    end: Floats
    fetched: Floats

    @property
    def total(self) -> Floats:
        """Time of each row."""
        return self.end[:, -1] if self.end.shape[1] else np.zeros(len(self.end))

    @property
    def begin(self) -> Floats:
        """When each kernel begins: at the end of the one before it."""
        return np.concatenate([np.zeros((len(self.end), 1)), self.end[:, :-1]], axis=1)


def own_times(busy: Busy, tiles: Floats) -> Floats:
    """Each kernel's time with its weights at hand: the pipeline of its tiles."""
    longest = np.maximum(np.maximum(busy.hmx, busy.hvx), busy.dma)
    return longest + (busy.hmx + busy.hvx + busy.dma - longest) / tiles + busy.overhead


def run(busy: Busy, tiles: Floats, free_after: Ints) -> KernelTimeline:
    """Put the kernels of every row on the timeline.

    ``tiles`` and ``free_after`` are as ``Placed`` has them, one row for all or one for each.
    """
    own = own_times(busy, tiles)
    rows, count = own.shape
    tiles = np.broadcast_to(tiles, own.shape)
    free_after = np.broadcast_to(free_after, own.shape)
    # One more at the end, 0: where -1 looks.
    ends = np.zeros((count + 1, rows))
    fetched = np.zeros((count, rows))
    every = np.arange(rows)
    before, queue = np.zeros(rows), np.zeros(rows)
    for number in range(count):
        weights, tile_share = busy.weights[:, number], 1.0 / tiles[:, number]
        came = np.maximum(queue, ends[free_after[:, number], every]) + weights
        begin = np.maximum(before, came - weights * (1.0 - tile_share))
        before = np.maximum(begin + own[:, number], np.where(weights > 0, came + own[:, number] * tile_share, 0.0))
        ends[number], fetched[number] = before, came
        queue = np.where(weights > 0, came, queue) + busy.dma[:, number]
    return KernelTimeline(own=own, end=ends[:count].T, fetched=fetched.T)
