"""The only place that reads or moves time. All other code is given the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of integer nanoseconds that never goes back."""

    def now(self) -> int:
        """The present."""

    def advance_to(self, t: int) -> None:
        """Called when nothing can happen before ``t``: a virtual clock jumps there, a wall clock does not."""


class WallClock:
    """CLOCK_MONOTONIC, which every process of the machine reads alike."""

    now = staticmethod(time.monotonic_ns)

    def advance_to(self, t: int) -> None:
        """Real time needs no help."""


class VirtualClock:
    """Time that moves only when told to, so a test of a timeout takes no time."""

    def __init__(self, start: int = 0) -> None:
        self._now = start

    def now(self) -> int:
        """The present."""
        return self._now

    def advance_to(self, t: int) -> None:
        """Jump ahead; never back."""
        self._now = max(self._now, t)


def nap(seconds: float) -> None:
    """Let this thread sleep. What a signal handler raises ends the nap."""
    time.sleep(seconds)
