"""How long something urgent takes beside something long: the rows that measurements of it have in common."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class UrgentRow(msgspec.Struct, frozen=True):
    """How long an urgent graph took beside a long one, in parts of the long one's run.

    From its call to its end, its own time included. ``samples`` were not disturbed by anything else on the
    machine; those that were count in ``p99_share_all`` alone.
    """

    what: str
    median_share: float
    p99_share: float
    p99_share_all: float
    samples: int


def urgent_row(what: str, kept_us: Sequence[float], every_us: Sequence[float], long_us: float) -> UrgentRow:
    """A row of times of undisturbed samples and of all."""
    kept, every = sorted(kept_us), sorted(every_us)
    return UrgentRow(what, kept[len(kept) // 2] / long_us, _p99(kept) / long_us, _p99(every) / long_us, len(kept))


def _p99(ordered: Sequence[float]) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
