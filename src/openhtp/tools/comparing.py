"""Outputs of a replay beside the saved ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from openhtp.tools.saved_calls import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far outputs may be off: integers in steps, floats in parts of the largest of the output."""

    steps: int = 1
    share: float = 0.01


@dataclass(slots=True, kw_only=True)
class Compared:
    """An output of a graph over all executions. ``worst`` is in steps, or in parts of the largest number."""

    graph: str
    output: str
    executions: int = 0
    elements: int = 0
    equal: int = 0
    worst: float = 0.0
    in_steps: bool = False
    holds: bool = True

    def add(self, now: Array, then: Array, tolerance: Tolerance) -> None:
        """One more execution."""
        self.executions += 1
        a, b = now.astype(np.float64), then.astype(np.float64)
        self.in_steps = now.dtype.kind in "iub"
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        self.elements += now.size
        self.equal += int(np.count_nonzero(same))
        with np.errstate(all="ignore"):
            off = np.where(same, 0.0, np.abs(a - b))
        worst = float(np.max(off, initial=0.0))
        if not self.in_steps:
            largest = float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0))
            worst = worst / largest if largest else worst
        self.worst = max(self.worst, worst) if worst == worst else float("inf")
        self.holds = self.worst <= (tolerance.steps if self.in_steps else tolerance.share)


@dataclass(slots=True)
class ReplayResult:
    """What came of a replay."""

    calls: int = 0
    executions: int = 0
    compared: dict[tuple[str, str], Compared] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every call was answered as it was, and every output is near enough."""
        return not self.differing and all(row.holds for row in self.compared.values())
