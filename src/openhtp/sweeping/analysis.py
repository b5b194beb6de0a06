"""What the points say: the best ones, those that nothing beats in all objectives, and which axis matters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from openhtp.sweeping.study import Axis, Objective, PointResult, Scalar

Losses = npt.NDArray[np.float64]

_BINS = 16
"""Parts into which an axis with more values than this is cut."""


class Effect(Struct, frozen=True):
    """How much of the spread of an objective one axis explains by itself, 0 to 1."""

    axis: str
    share: float


def losses_of(rows: Sequence[PointResult], objectives: Sequence[Objective]) -> Losses:
    """Rows by objectives, smaller is better."""
    return np.array([[each.loss(row) for each in objectives] for row in rows]).reshape(len(rows), len(objectives))


def best(rows: Sequence[PointResult], objective: Objective, count: int) -> list[PointResult]:
    """The best rows for one objective; equal ones in the study's order."""
    return sorted(rows, key=lambda row: (objective.loss(row), row.point.number))[:count]


def pareto(losses: Losses) -> list[int]:
    """Rows that no other row beats, being at least as good everywhere and better somewhere; in order.

    Rows are met in order of their sum, in which nothing comes before what beats it.
    """
    if not len(losses):
        return []
    spread = np.ptp(losses, axis=0)
    order = np.argsort(
        ((losses - losses.min(axis=0)) / np.where(spread > 0, spread, 1)).sum(axis=1), kind="stable"
    )
    left = order
    front: list[int] = []
    while len(left):
        first = left[0]
        front.append(int(first))
        one = losses[first]
        others = losses[left]
        beaten = (others >= one).all(axis=1) & (others > one).any(axis=1)
        beaten[0] = True  # it is taken
        left = left[~beaten]
    return sorted(front)


def sensitivity(rows: Sequence[PointResult], axes: Sequence[Axis], objective: Objective) -> list[Effect]:
    """Which axis matters: the variance of the means of its values, over the whole variance; largest first.

    Of a full grid these are the main effects; what is left of 1 is due to axes acting together.
    """
    losses = losses_of(rows, [objective])[:, 0]
    whole = float(losses.var()) if len(losses) else 0.0
    effects = []
    for axis in axes:
        groups = _groups([row.point.values[axis.name] for row in rows])
        share = 0.0
        if whole > 0:
            counts = np.bincount(groups)
            means = np.bincount(groups, losses) / np.maximum(counts, 1)
            share = float((counts * (means - losses.mean()) ** 2).sum() / (len(losses) * whole))
        effects.append(Effect(axis.name, round(min(1.0, share), 6)))
    return sorted(effects, key=lambda effect: -effect.share)


def _groups(values: Sequence[Scalar]) -> npt.NDArray[np.intp]:
    """A number for each value; neighbours share one where there are too many."""
    if all(isinstance(value, (int, float)) for value in values):
        distinct, groups = np.unique(np.array(values, dtype=float), return_inverse=True)
        if len(distinct) > _BINS:
            groups = groups * _BINS // len(distinct)
        return groups.astype(np.intp)
    numbers: dict[Scalar, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.intp)
