"""Polling: to look for something again and again instead of sleeping until it comes; quick while a core is free.

A thread that polls while others wait for its core is worse off than one that sleeps: it uses up its share of time,
and is set aside just when the thing comes. So a thread sleeps if it finds that its core was taken away between two
looks. For a while afterwards it polls no longer than it would without any vote.
"""

from __future__ import annotations

import os
import time

# How long both sides poll without a vote (decision 005). Calls that follow each other come within that time.
UNASKED_NS = 60_000
# With one core, looking would keep the other side from running at all.
CORES = len(os.sched_getaffinity(0))
# Two looks lie microseconds apart; this far only if somebody else had the core.
_TAKEN_NS = 200_000
# The rest after that, in which polls are short. Each rest is longer than the one before, until the thread has had
# its core to itself for as long as the last one took.
_FIRST_REST_NS = 50_000_000
_LONGEST_REST_NS = 2_000_000_000
# From here on, others are offered the core between two looks: we may be waiting for one of them.
_POLITE_AFTER_NS = 100_000


class Looking:
    """The patience of one thread or process. Ask ``begin``, then ``go_on`` after each look that found nothing."""

    __slots__ = ("_began", "_last", "_rest_ns", "_rests_until", "patience_ns")

    def __init__(self) -> None:
        self._began = self._last = self.patience_ns = 0
        self._rests_until = 0
        self._rest_ns = _FIRST_REST_NS

    def begin(self, patience_ns: int) -> bool:
        """Whether polling is of use at all now."""
        self._began = self._last = now = time.monotonic_ns()
        self.patience_ns = patience_ns if now >= self._rests_until else min(patience_ns, UNASKED_NS)
        return patience_ns > 0 and CORES > 1

    def go_on(self) -> bool:
        """Whether to look once more."""
        now = time.monotonic_ns()
        if now - self._last > _TAKEN_NS:
            self._rest(now)
            return False
        looked = now - self._began
        if looked >= self.patience_ns:
            return False
        if looked >= _POLITE_AFTER_NS:
            os.sched_yield()
        self._last = now
        return True

    def _rest(self, now: int) -> None:
        calm_ns = now - self._rests_until
        self._rest_ns = _FIRST_REST_NS if calm_ns > self._rest_ns else min(2 * self._rest_ns, _LONGEST_REST_NS)
        self._rests_until = now + self._rest_ns
