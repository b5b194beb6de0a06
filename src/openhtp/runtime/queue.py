"""The bounded execution queue of a context: places for requests accepted and not yet completed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from openhtp.core import status as st
from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.limits import MAX_QUEUE_DEPTH


def check_depth(depth: object) -> int:
    """A valid queue depth, or an error that says what is valid."""
    number = whole_number(depth)
    if number is None or not 1 <= number <= MAX_QUEUE_DEPTH:
        raise InvalidArgument(
            f"queue depth {shown(depth)}; expected a whole number from 1 to {MAX_QUEUE_DEPTH}",
            st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
        )
    return number


class Places:
    """Counts free places. Who finds none waits, in order of coming, until one is free or the wait is over."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._free = depth
        self._waiters = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closed: Callable[[], QnnError] | None = None

    @property
    def used(self) -> int:
        """Requests accepted and not yet completed."""
        return self.depth - self._free

    def try_take(self) -> bool:
        """Take a place if one is free and nobody waits for it."""
        with self._lock:
            if self._closed is not None:
                raise self._closed()
            if self._free and not self._waiters:
                self._free -= 1
                return True
            return False

    def take(self, until_ns: int | None = None, interrupted: Callable[[], QnnError | None] | None = None) -> None:
        """Take a place, waiting for it. ``interrupted`` is asked whenever something changed."""
        with self._lock:
            self._waiters += 1
            try:
                while not self._free:
                    self._check(interrupted)
                    self._changed.wait(None if until_ns is None else _seconds_to(until_ns))
                self._check(interrupted)
                self._free -= 1
            finally:
                self._waiters -= 1

    def give_back(self) -> None:
        """A request was completed (or not sent after all)."""
        with self._lock:
            self._free += 1
            if self._waiters:
                self._changed.notify()

    def wake_all(self) -> None:
        """Let every waiter ask again whether it should go on waiting."""
        with self._lock:
            self._changed.notify_all()

    def close(self, why: Callable[[], QnnError]) -> None:
        """Refuse everyone from now on, those who wait included."""
        with self._lock:
            self._closed = why
            self._changed.notify_all()

    def _check(self, interrupted: Callable[[], QnnError | None] | None) -> None:
        if self._closed is not None:
            raise self._closed()
        error = interrupted() if interrupted is not None else None
        if error is not None:
            raise error


def _seconds_to(t_ns: int) -> float:
    return max(0.0, (t_ns - time.monotonic_ns()) / 1e9)
