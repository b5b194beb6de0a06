"""Where a condition holds, as a list of fixed length: what data-dependent ops give in place of a shorter one."""

from __future__ import annotations

import numpy as np

from openhtp.ops._emit import Emitter
from openhtp.ops._node import Array, Shape


def first_places(truth: Array, count: int) -> Array:
    """Flat places of the true elements in order; the number of elements stands for none."""
    found = np.flatnonzero(truth)[:count]
    return np.concatenate([found, np.full(count - len(found), truth.size)])


def emit_first_places(e: Emitter, truth: str, size: int, count: int) -> str:
    """The same in ONNX. Sorting keeps every shape fixed, which the runtime's own NonZero would not."""

    def ints(numbers: Array) -> str:
        return e.const(np.asarray(numbers, np.int64))

    flat = e.node("Reshape", [truth, ints(np.array([size]))])
    marked = e.node("Where", [flat, ints(np.arange(size)), ints(np.array(size))])
    kept = min(count, size)
    found, _ = e.nodes("TopK", [marked, ints(np.array([kept]))], 2, axis=0, largest=0)
    if kept == count:
        return found
    return e.node("Concat", [found, ints(np.full(count - kept, size))], axis=0)


def emit_coordinates(e: Emitter, places: str, shape: Shape) -> str:
    """Flat places as one coordinate per axis, [count, rank]; -1 for none."""
    strides = np.array([int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))], np.int64)
    column = e.node("Unsqueeze", [places, e.const(np.array([1], np.int64))])
    steps = e.node("Div", [column, e.const(strides)])
    spelled = e.node("Mod", [steps, e.const(np.array(shape, np.int64))])
    there = e.node("Less", [column, e.const(np.array(np.prod(shape), np.int64))])
    return e.node("Where", [there, spelled, e.const(np.array(-1, np.int64))])


def coordinates(places: Array, shape: Shape) -> Array:
    """The same in numpy."""
    size = int(np.prod(shape))
    spelled = np.stack(np.unravel_index(np.minimum(places, size - 1), shape), axis=-1)
    return np.where((places < size)[:, None], spelled, -1)
