"""How far modelled times are from published ones, as ``tools/fit_cost_model.py`` found and wrote it down."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Errors of modelled against measured times of one group. ``covered`` is the part that lies in the range."""

    name: str
    count: int
    median: float
    p90: float
    bias: float
    covered: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyReport:
    """All groups, by what they have in common; each family of networks was predicted by a fit without it."""

    source: str
    times: int
    networks: int
    rank_correlation: dict[str, float]
    groups: dict[str, list[Accuracy]]


@functools.cache
def accuracy_report() -> AccuracyReport:
    """The report on the parameters that this package has."""
    data = resources.files("openhtp.cost").joinpath("accuracy.json").read_bytes()
    return msgspec.json.decode(data, type=AccuracyReport)
