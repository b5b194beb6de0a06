"""What a plan must not exceed, for continuous integration: missed deadlines, and times of single clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openhtp.core.errors import InvalidArgument
from openhtp.planning.result import PlanResult
from openhtp.planning.scenario import UNITS, Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceeded:
    """A limit that a plan does not keep: ``what`` is ``miss_rate`` or ``p99``, in the scenario's unit."""

    policy: str
    client: str
    what: str
    limit: float
    found: float | None
    unit: str

    def __str__(self) -> str:
        who = f"{self.client} ({self.policy} policy)"
        if self.what == "miss_rate":
            return f"{who} misses {self.found:.2%} of its deadlines; allowed are {self.limit:.2%}"
        if self.found is None:
            return f"{who} finished no run; its p99 should be at most {self.limit:g} {self.unit}"
        return f"{who} has a p99 of {self.found:g} {self.unit}; allowed are {self.limit:g} {self.unit}"


def exceeded(
    result: PlanResult, *, max_miss_rate: float | None = None, max_p99: Mapping[str, float] | None = None
) -> list[Exceeded]:
    """The limits that a plan exceeds: misses of each client as a share of 1, times in the scenario's unit."""
    broken: list[Exceeded] = []
    scenario = result.scenario

    def note(client: str, what: str, limit: float, value: float | None) -> None:
        if value is None or value > limit:
            broken.append(
                Exceeded(
                    policy=scenario.policy.name,
                    client=client,
                    what=what,
                    limit=limit,
                    found=value,
                    unit=scenario.unit,
                )
            )

    for name, row in result.clients.items():
        if max_miss_rate is not None and row.deadline is not None:
            note(name, "miss_rate", max_miss_rate, row.missed / max(1, row.runs + row.not_done))
        if max_p99 and name in max_p99:
            note(name, "p99", max_p99[name], row.p99)
    return broken


def read_limit(text: str, scenario: Scenario) -> tuple[str, float]:
    """``camera=20`` or ``camera=20ms``: a client and a time, in the scenario's unit where none is given."""
    name, _, amount = text.rpartition("=")
    names = [client.name for client in scenario.clients]
    if name not in names:
        raise InvalidArgument(f"limit {text!r}; expected CLIENT=TIME, with one of {', '.join(names)}")
    unit = next((unit for unit in ("ns", "us", "ms", "s") if amount.endswith(unit)), "")
    try:
        time = float(amount.removesuffix(unit))
    except ValueError:
        time = -1.0
    if not 0 <= time < float("inf"):
        raise InvalidArgument(f"limit {text!r}: {amount!r} is no time; expected something like 20 or 20ms")
    return name, time * UNITS[unit or scenario.unit] / scenario.unit_ns
