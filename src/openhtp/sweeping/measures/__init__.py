"""What can be measured of a point: modelled time, a plan, accuracy, or a live run.

A measure is a file here with a ``MEASURE``; each says which axes it has and which numbers it gives, so that a
study can be checked without measuring anything. Start at ``estimate.py``. Must not know stores or engines.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from openhtp.core.errors import QnnError
from openhtp.sweeping.study import Objective, Scalar, Study, StudyFiles, Values

Measured = dict[str, Scalar] | QnnError | OSError
"""Numbers by name, or the error that came instead."""


class Measurer(Protocol):
    """Measures points of one study; lives in a worker, and keeps what it has compiled or read."""

    def run(self, points: Sequence[Values]) -> list[Measured]:
        """Measure some points, each by itself: a point that fails spoils no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Axes, needs and numbers of one measure.

    ``families`` are beginnings of names of axes (``clients.``), ``each`` ends of names of numbers (``.p99_us``).
    ``chunk`` is how many points a worker gets at first; later on, as many as it does in a moment.
    """

    axes: tuple[str, ...]
    families: tuple[str, ...] = ()
    needs: tuple[str, ...]
    numbers: tuple[str, ...]
    each: tuple[str, ...] = ()
    objectives: tuple[Objective, ...]
    files: Callable[[Study], list[str]]
    make: Callable[[Study, StudyFiles], Measurer]
    chunk: int = 1

    def takes(self, axis: str) -> bool:
        """Whether it has that axis."""
        return axis in self.axes or any(axis.startswith(f) and len(axis) > len(f) for f in self.families)

    def gives(self, number: str) -> bool:
        """Whether it measures that number."""
        return number in self.numbers or number.endswith(self.each)


def values_of(study: Study, axis: str) -> tuple[Scalar, ...]:
    """All values of an axis; none if the study does not have it."""
    return next((each.values for each in study.axes if each.name == axis), ())


__all__ = ["Measure", "Measurer", "find_measure", "measure_names"]

_NAMES = ("estimate", "plan", "accuracy", "live")


def measure_names() -> tuple[str, ...]:
    """All measures, by the word that a study uses."""
    return _NAMES


def find_measure(name: str) -> Measure:
    """A measure; its file is loaded when it is first asked for."""
    measure: Measure = importlib.import_module(f"openhtp.sweeping.measures.{name}").MEASURE
    return measure
