"""What can be measured of a point: modelled time, a plan, accuracy, or a live run.

A measure is a file here with a ``MEASURE``; each says which axes it has and which numbers it gives, so that a
study can be checked without measuring anything. Start at ``estimate.py``. Must not know stores or engines.
"""

from __future__ import annotations

import importlib

from openhtp.sweeping.measures._kind import Measure, Measurer

__all__ = ["Measure", "Measurer", "find_measure", "measure_names"]

_NAMES = ("estimate", "plan", "accuracy", "live")


def measure_names() -> tuple[str, ...]:
    """All measures, by the word that a study uses."""
    return _NAMES


def find_measure(name: str) -> Measure:
    """A measure; its file is loaded when it is first asked for."""
    measure: Measure = importlib.import_module(f"openhtp.sweeping.measures.{name}").MEASURE
    return measure
