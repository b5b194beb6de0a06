"""Resampling along one axis as a matrix: row i holds the weights of the inputs that make output i."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from openhtp.ops._node import Array

# How an output index becomes a place between inputs: (index, output size, input size) -> place.
PLACES: dict[str, Callable[[int, int, int], float]] = {
    "half_pixel": lambda i, out, size: (i + 0.5) * size / out - 0.5,
    "pytorch_half_pixel": lambda i, out, size: (i + 0.5) * size / out - 0.5 if out > 1 else 0.0,
    "align_corners": lambda i, out, size: i * (size - 1) / (out - 1) if out > 1 else 0.0,
    "asymmetric": lambda i, out, size: i * size / out,
}
_ROUND: dict[str, Callable[[float], float]] = {
    "round_prefer_floor": lambda x: math.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: math.floor(x + 0.5),
    "floor": math.floor,
    "ceil": math.ceil,
}


def nearest_matrix(size: int, out: int, places: str, rounding: str) -> Array:
    """Each output is one input."""
    matrix = np.zeros((out, size))
    for i in range(out):
        place = _ROUND[rounding](PLACES[places](i, out, size))
        matrix[i, min(max(int(place), 0), size - 1)] = 1.0
    return matrix


def linear_matrix(size: int, out: int, places: str) -> Array:
    """Each output lies between two inputs; beyond the border the last one counts alone."""
    matrix = np.zeros((out, size))
    for i in range(out):
        place = min(max(PLACES[places](i, out, size), 0.0), size - 1.0)
        left = min(int(place), size - 1)
        matrix[i, left] += 1.0 - (place - left)
        matrix[i, min(left + 1, size - 1)] += place - left
    return matrix


def cubic_matrix(size: int, out: int, places: str, a: float, *, exclude_outside: bool) -> Array:
    """Each output is made of four inputs by the cubic convolution kernel with coefficient ``a``."""
    matrix = np.zeros((out, size))
    for i in range(out):
        place = PLACES[places](i, out, size)
        base = math.floor(place)
        weights = [_cubic(abs(place - (base + k)), a) for k in range(-1, 3)]
        if exclude_outside:
            weights = [w if 0 <= base + k < size else 0.0 for k, w in zip(range(-1, 3), weights, strict=True)]
            weights = [w / sum(weights) for w in weights]
        for k, weight in zip(range(-1, 3), weights, strict=True):
            matrix[i, min(max(base + k, 0), size - 1)] += weight
    return matrix


def _cubic(x: float, a: float) -> float:
    if x <= 1.0:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2.0 else 0.0


def resample(x: Array, matrices: list[Array]) -> Array:
    """Apply one matrix per image axis of a channel-last array."""
    for axis, matrix in enumerate(matrices, start=1):
        x = np.moveaxis(np.tensordot(matrix, x, axes=(1, axis)), 0, axis)
    return x
