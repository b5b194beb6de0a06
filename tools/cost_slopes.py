"""The timeline of ``openhtp.cost.timeline`` with its derivatives: what is on the critical path."""

from __future__ import annotations

import numpy as np

from openhtp.cost.timeline import Busy, own_times

HMX, HVX, DMA, WEIGHTS, OVERHEAD = range(5)


def time_and_slopes(busy: np.ndarray, tiles: np.ndarray, free_after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Time of every row, and its derivative by the time of every kernel on every unit (units, rows, kernels)."""
    times = Busy(hmx=busy[HMX], hvx=busy[HVX], dma=busy[DMA], weights=busy[WEIGHTS], overhead=busy[OVERHEAD])
    own = own_times(times, tiles).T.copy()
    piece = (1.0 / tiles).T.copy()
    weights, dma, after = busy[WEIGHTS].T.copy(), busy[DMA].T.copy(), free_after.T.copy()
    count, rows = own.shape
    every = np.arange(rows)
    ends = np.zeros((count + 1, rows))
    by_queue, by_before, by_own = (np.zeros((count, rows), bool) for _ in range(3))
    has = weights > 0
    before, queue = np.zeros(rows), np.zeros(rows)
    for place in range(count):
        free = ends[after[place], every]
        by_queue[place] = queue >= free
        came = np.maximum(queue, free) + weights[place]
        ready = came - weights[place] * (1 - piece[place])
        by_before[place] = before >= ready
        ran = np.maximum(before, ready) + own[place]
        late = np.where(has[place], came + own[place] * piece[place], 0.0)
        by_own[place] = ran >= late
        before = ends[place] = np.maximum(ran, late)
        queue = np.where(has[place], came, queue) + dma[place]
    return before, _back(busy, tiles, piece, has, after, by_queue, by_before, by_own)


def _back(busy, tiles, piece, has, after, by_queue, by_before, by_own) -> np.ndarray:
    """The same way from the end to the start, counting what each kernel's times add to the whole."""
    count, rows = piece.shape
    every = np.arange(rows)
    of_end = np.zeros((count + 1, rows))
    of_end[count - 1] = 1.0
    of_own, of_weights, of_dma = (np.zeros((count, rows)) for _ in range(3))
    of_queue = np.zeros(rows)
    for place in range(count - 1, -1, -1):
        of_dma[place] += of_queue
        share = of_end[place]
        ran, late = np.where(by_own[place], share, 0.0), np.where(by_own[place], 0.0, share)
        of_own[place] += ran + late * piece[place]
        waited = np.where(by_before[place], 0.0, ran)
        if place:
            of_end[place - 1] += ran - waited
        of_weights[place] -= waited * (1 - piece[place])
        of_came = late + waited + np.where(has[place], of_queue, 0.0)
        of_queue = np.where(has[place], 0.0, of_queue)
        of_weights[place] += of_came
        queued = np.where(by_queue[place], of_came, 0.0)
        of_queue = of_queue + queued
        np.add.at(of_end, (after[place], every), of_came - queued)
        of_end[count] = 0.0
    slopes = np.zeros_like(busy)
    three = busy[[HMX, HVX, DMA]]
    longest = three.argmax(axis=0)
    for number, unit in enumerate((HMX, HVX, DMA)):
        slopes[unit] = of_own.T * (1 / tiles + (longest == number) * (1 - 1 / tiles))
    slopes[DMA] += of_dma.T
    slopes[WEIGHTS], slopes[OVERHEAD] = of_weights.T, of_own.T
    return slopes
