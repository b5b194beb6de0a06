"""One scenario with thousands of different arrivals: how often deadlines are missed, and how sure that is.

Requests of one run are not independent: where one waits, its neighbours do. So intervals of miss rates count as
many independent requests as the spread between runs says there are, or as there are runs where nothing was missed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from openhtp.core.errors import InvalidArgument
from openhtp.planning import load_scenario
from openhtp.sweeping import Progress, SweepEngine, sweep

_Z95 = 1.959963984540054
_CONFIDENCE = 0.95


class ConfidenceInterval(Struct, frozen=True):
    """A share, and the bounds between which it lies with 95% confidence."""

    share: float
    low: float
    high: float


class ClientMisses(Struct, frozen=True):
    """One client over all arrivals: ``rate`` of requests, ``runs`` of runs with at least one miss."""

    requests: int
    missed: int
    rate: ConfidenceInterval
    runs: ConfidenceInterval


class MonteCarlo(Struct, frozen=True):
    """All clients that have a deadline, by name, and all of them together."""

    scenario: str
    seeds: int
    clients: dict[str, ClientMisses]
    together: ClientMisses

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        plain: dict[str, Any] = to_builtins(self)
        return {"times": "modelled", "confidence": _CONFIDENCE, **plain}


def monte_carlo(
    scenario: str | Path,
    seeds: int,
    *,
    policy: str | None = None,
    on: str | SweepEngine = "local",
    progress: Progress | None = None,
) -> MonteCarlo:
    """Plan a scenario file once for each of ``seeds`` different arrivals.

    Raises:
        InvalidArgument: there is nothing to draw, or nothing to miss.
        BadScenario: the scenario is wrong; the message names the place.
    """
    path = Path(scenario).resolve()
    loaded = load_scenario(path)
    if not loaded.is_random:
        raise InvalidArgument(f"nothing in {path.name} is random; seeds change the arrivals of 'poisson' sources")
    names = [client.name for client in loaded.clients if client.deadline_ns is not None]
    if not names:
        raise InvalidArgument(f"no client of {path.name} has a 'deadline', so none can be missed")
    if seeds < 2:
        raise InvalidArgument(f"{seeds} seeds; an interval needs at least 2")
    axes: dict[str, Any] = {"scenario": str(path), "seed": {"from": 0, "to": seeds - 1}}
    if policy is not None:
        axes["policy"] = policy
    result = sweep({"name": loaded.name, "measure": "plan", "axes": axes}, on=on, progress=progress)
    for cause, _, _ in result.causes():
        raise InvalidArgument(f"{path.name}: {cause}")
    counts = {
        name: [(int(row.number(f"{name}.missed")), int(row.number(f"{name}.requests"))) for row in result.rows]
        for name in names
    }
    everyone = [
        (sum(missed for missed, _ in run), sum(asked for _, asked in run))
        for run in zip(*counts.values(), strict=True)
    ]
    return MonteCarlo(
        scenario=loaded.name,
        seeds=seeds,
        clients={name: misses(runs) for name, runs in counts.items()},
        together=misses(everyone),
    )


def misses(runs: Sequence[tuple[int, int]]) -> ClientMisses:
    """Rates of (missed, requests) of independent runs."""
    missed = sum(each for each, _ in runs)
    requests = sum(each for _, each in runs)
    share = missed / requests if requests else 0.0
    hit = sum(each > 0 for each, _ in runs) / len(runs)
    return ClientMisses(
        requests=requests,
        missed=missed,
        rate=wilson(share, _independent(runs, share, requests)),
        runs=wilson(hit, len(runs)),
    )


def _independent(runs: Sequence[tuple[int, int]], share: float, requests: int) -> float:
    """How many independent requests would give the spread between runs; never more than there were."""
    if not 0 < share < 1:
        return min(len(runs), requests)
    squares = math.fsum((missed - share * asked) ** 2 for missed, asked in runs)
    variance = len(runs) / (len(runs) - 1) * squares / requests**2  # of a ratio, between clusters
    return min(requests, share * (1 - share) / variance) if variance else requests


def wilson(share: float, count: float) -> ConfidenceInterval:
    """Wilson's interval of a share seen in ``count`` independent trials; the whole range if there were none."""
    if not count:
        return ConfidenceInterval(share, 0.0, 1.0)
    scale = 1 + _Z95**2 / count
    middle = (share + _Z95**2 / (2 * count)) / scale
    half = _Z95 * math.sqrt(share * (1 - share) / count + _Z95**2 / (4 * count**2)) / scale
    return ConfidenceInterval(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))
