"""The seat decides which thread works with a device in the client's own process: the loop's, or a caller's.

The loop has the seat whenever it is awake. A caller takes the seat while the loop sleeps and nothing is under way,
computes step by step, and gives the seat up at the end of a step if the loop waits. The rest of its execution is
then a job like any other, and the loop takes that job in before anything that came later.

A caller may be interrupted anywhere (decision 027). So there is no lock: taking the seat and noting its holder are
one step, and giving the seat up twice, for example while tidying up, does no harm.
"""

from __future__ import annotations

import os
import queue
from collections import deque
from collections.abc import Callable

# How long a caller looks for a free seat: about as long as it takes to hand an execution to another thread.
PATIENCE_NS = 100_000


class Seat:
    """One at a time may sit; the loop is never kept waiting for longer than a step."""

    __slots__ = ("_left_over", "_loop_waits", "_news", "_now", "_sitting", "soon_free", "wanted")

    def __init__(self, now: Callable[[], int]) -> None:
        """``now`` is the device's clock."""
        self._now = now
        # The loop has work: a caller that computes is to leave at the end of its step.
        self.wanted = False
        # Whether the holder leaves within a moment: a caller says so when it sits down; the loop always does.
        self.soon_free = True
        # At most one, the loop or a caller: ``setdefault`` is one step.
        self._sitting: dict[None, object] = {}
        self._loop_waits = False
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._left_over: deque[Callable[[], None]] = deque()

    # The loop's part

    def take(self) -> None:
        """Sit down; a caller that computes leaves at the end of its step. Takes in the rest of its execution."""
        if self._sitting.setdefault(None, self) is not self:
            self.wanted = self._loop_waits = True
            while self._sitting.setdefault(None, self) is not self:
                self._news.get()
            self._loop_waits = False
        self.wanted = False
        self.soon_free = True
        while self._left_over:
            self._left_over.popleft()()

    def leave(self) -> None:
        """Get up, before going to sleep."""
        self.wanted = False
        del self._sitting[None]

    # Everybody's part

    def want(self) -> None:
        """Work comes for the loop: free the seat for when the loop is awake. To be followed by a wake-up."""
        self.wanted = True

    # A caller's part

    def try_take(self, caller: object) -> bool:
        """Sit down if the seat is free, or about to be, and the loop does not wait for it.

        A caller that got the seat has to ``give_up``, whatever happens.
        """
        if self._loop_waits:
            return False
        if self._sitting.setdefault(None, caller) is caller:
            return True
        if not self.soon_free:
            return False
        until_ns = self._now() + PATIENCE_NS
        while self.soon_free and not self._loop_waits and self._now() < until_ns:
            os.sched_yield()
            if self._sitting.setdefault(None, caller) is caller:
                return True
        return False

    def give_up(self, caller: object) -> None:
        """Get up. Does nothing for a caller that does not sit."""
        if self._sitting.get(None) is caller:
            del self._sitting[None]
        if self._loop_waits:
            self._news.put(None)

    def leave_over(self, rest: Callable[[], None]) -> None:
        """Have the loop do ``rest`` as soon as it sits. For a caller that sits, and then calls ``give_up``."""
        self._left_over.append(rest)
