"""Which job goes first. A policy turns what is known when a job arrives into one integer: its rank.

Lower ranks go first; equal ranks go in order of arrival; only a strictly lower rank pre-empts. A rank never
changes while the job waits, so a policy needs no timers, the order is total, and a replay is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from openhtp.core.enumerations import Priority
from openhtp.core.errors import InvalidArgument
from openhtp.core.units import MS

_MAX_PRIORITY = max(Priority)
_NO_DEADLINE = 1 << 70
"""Later than any deadline; jobs without one go after those with one, by priority."""


class Policy(Protocol):
    """One small decision: how urgent is this job?"""

    @property
    def name(self) -> str:
        """The word that scenarios and commands use."""

    def rank(self, priority: int, arrived_ns: int, deadline_ns: int | None) -> int:
        """Return the job's rank; lower is more urgent."""


@dataclass(frozen=True, slots=True)
class Strict:
    """The device's own rule: the higher priority always goes first, however long others wait."""

    name: str = "strict"

    def rank(self, priority: int, arrived_ns: int, deadline_ns: int | None) -> int:
        """Return minus the priority."""
        return -priority


@dataclass(frozen=True, slots=True)
class EarliestDeadline:
    """The nearest deadline goes first, whatever the priority; priority orders jobs without a deadline."""

    name: str = "edf"

    def rank(self, priority: int, arrived_ns: int, deadline_ns: int | None) -> int:
        """Return the deadline, with the priority as tie-break."""
        at = _NO_DEADLINE if deadline_ns is None else deadline_ns
        return at * (_MAX_PRIORITY + 1) + _MAX_PRIORITY - priority


@dataclass(frozen=True, slots=True)
class Fair:
    """Priorities as head starts: nobody waits without bound.

    A job of a level that lies n levels below the top is ordered as if it had arrived n windows later. So a
    higher level overtakes jobs of a lower one that arrived up to that many windows before, and no others:
    once a job has waited its head start out, everything that arrives later stands behind it and cannot
    pre-empt it either.
    """

    window_ns: int = 100 * MS
    name: str = "fair"

    def __post_init__(self) -> None:
        if self.window_ns < 0:
            raise InvalidArgument(f"the fair policy's window is {self.window_ns} ns; it cannot be negative")

    def rank(self, priority: int, arrived_ns: int, deadline_ns: int | None) -> int:
        """Return the arrival time plus a window for each level above this one."""
        return arrived_ns + self.window_ns * _LEVELS_ABOVE[priority]


_LEVELS_ABOVE: dict[int, int] = {level: sum(other > level for other in Priority) for level in Priority}

STRICT = Strict()


def policy_named(name: str, *, window_ns: int | None = None) -> Policy:
    """Return the policy that scenarios call ``name``."""
    if name == "strict":
        return STRICT
    if name == "edf":
        return EarliestDeadline()
    if name == "fair":
        return Fair() if window_ns is None else Fair(window_ns)
    raise InvalidArgument(f"policy {name!r} is unknown; expected strict, edf or fair")
