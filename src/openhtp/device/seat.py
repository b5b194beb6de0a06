"""Who works with a device in the client's own process: the loop's thread, or a caller that computes by itself.

The loop has the seat whenever it is awake. A caller takes the seat while the loop sleeps and nothing is under way,
computes step by step, and gives the seat up at the end of a step for which the loop waits. What is left of its
execution is a job like any other from then on, and the loop takes that in before anything that came later.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

# How long a caller waits for the seat: about as long as it takes to hand an execution to another thread.
PATIENCE_S = 1e-4


class Seat:
    """One at a time may sit; the loop is never kept waiting for longer than a step."""

    __slots__ = ("_left_over", "_lock", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        self._lock = threading.Lock()
        self._left_over: deque[Callable[[], None]] = deque()

    # The loop's part

    def take(self) -> None:
        """Sit down; a caller who computes leaves at the end of its step. Takes in what it left over."""
        if not self._lock.acquire(blocking=False):
            self.wanted = True
            self._lock.acquire()
            self.wanted = False
        while self._left_over:
            self._left_over.popleft()()

    def leave(self) -> None:
        """Get up, before going to sleep."""
        self._lock.release()

    # A caller's part

    def try_take(self) -> bool:
        """Sit down if the seat is free, or about to be, and the loop does not wait for it.

        Who sits has to ``give_up``, whatever happens.
        """
        return not self.wanted and self._lock.acquire(timeout=PATIENCE_S)

    def give_up(self) -> None:
        """Get up: all is computed."""
        self._lock.release()

    def leave_over(self, rest: Callable[[], None]) -> None:
        """Have the loop do ``rest`` as soon as it sits. For a caller who sits, and then calls ``give_up``."""
        self._left_over.append(rest)

    def leave_to_parent(self) -> None:
        """In the child of a fork nobody sits."""
        self._lock = threading.Lock()
        self._left_over.clear()
