"""Looking for something again and again instead of sleeping until it comes: quick, as long as there are cores.

A thread that looks while others wait for the core is worse off than one that sleeps: it uses up its share, and is
set aside when the thing it looks for comes. So a thread that finds that the core was taken away between two looks
sleeps. For a while it then looks no longer than threads do where nobody votes.
"""

from __future__ import annotations

import os
import time

# How long both sides look where nobody votes (decision 005): what is called one after the other comes within that.
UNASKED_NS = 60_000
# With one core, looking would keep the other side from running at all.
_CORES = len(os.sched_getaffinity(0))
# Two looks lie microseconds apart; this far only if somebody else had the core.
_TAKEN_NS = 200_000
# How long nobody looks for long after that: longer each time, until the core was one's own for as long as the
# last rest.
_FIRST_REST_NS = 50_000_000
_LONGEST_REST_NS = 2_000_000_000
# From here on, others are offered the core between two looks: we may be waiting for one of them.
_POLITE_AFTER_NS = 100_000


class Looking:
    """One thread's, or process's, patience. Ask ``begin``, then ``go_on`` after each look that found nothing."""

    __slots__ = ("_began", "_last", "_rest_ns", "_rests_until", "patience_ns")

    def __init__(self) -> None:
        self._began = self._last = self.patience_ns = 0
        self._rests_until = 0
        self._rest_ns = _FIRST_REST_NS

    def begin(self, patience_ns: int) -> bool:
        """Whether there is use in looking at all now."""
        self._began = self._last = now = time.monotonic_ns()
        self.patience_ns = patience_ns if now >= self._rests_until else min(patience_ns, UNASKED_NS)
        return patience_ns > 0 and _CORES > 1

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
