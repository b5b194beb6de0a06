"""The bounded execution queue of a context: places for requests accepted and not yet completed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from openhtp.core.errors import QnnError
from openhtp.options import CONTEXT
from openhtp.runtime.locks import make_lock


def check_depth(depth: object) -> int:
    """A valid queue depth, or an error that says what is valid."""
    number: int = CONTEXT.read({"queue_depth": depth}).queue_depth
    return number


class Places:
    """Who has a place, and who waits for one, in order of coming. A holder is whatever stands for one request.

    Being in the set is having the place: there is no count beside it that an interrupt could leave behind.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._held: set[object] = set()
        # Each waits on a lock of its own, released when there is news for it.
        self._waiters: dict[object, threading.Lock] = {}
        self._lock = make_lock("places")
        self._closed: Callable[[], QnnError] | None = None

    @property
    def used(self) -> int:
        """Requests accepted and not yet completed."""
        return len(self._held)

    def try_take(self, holder: object) -> bool:
        """Take a place if one is free and nobody waits for it."""
        with self._lock:
            if self._closed is not None:
                raise self._closed()
            if len(self._held) < self.depth and not self._waiters:
                self._held.add(holder)
                return True
            return False

    def take(
        self,
        holder: object,
        until_ns: int | None = None,
        interrupted: Callable[[], QnnError | None] | None = None,
    ) -> None:
        """Take a place, waiting for it. ``interrupted`` is asked whenever something changed.

        Who gives up waiting, for whatever reason, calls ``give_back``.
        """
        news = threading.Lock()
        news.acquire()
        with self._lock:
            self._waiters[holder] = news
            self._hand_out()
        while holder not in self._held:
            self._check(interrupted)
            news.acquire(timeout=-1 if until_ns is None else _seconds_to(until_ns))

    def give_back(self, holder: object) -> None:
        """A request was completed, or not sent after all. Does nothing for who has no place and waits for none."""
        with self._lock:
            self._held.discard(holder)
            if self._waiters:
                self._waiters.pop(holder, None)
                self._hand_out()

    def wake_all(self) -> None:
        """Let every waiter ask again whether it should go on waiting."""
        with self._lock:
            self._tell_all()

    def close(self, why: Callable[[], QnnError]) -> None:
        """Refuse everyone from now on, those who wait included."""
        with self._lock:
            self._closed = why
            self._tell_all()

    def _hand_out(self) -> None:
        """Give free places to those who wait. Can be begun again wherever it was interrupted."""
        while self._waiters:
            holder = next(iter(self._waiters))
            if holder not in self._held:
                if len(self._held) >= self.depth:
                    return
                self._held.add(holder)
            _tell(self._waiters[holder])
            del self._waiters[holder]

    def _tell_all(self) -> None:
        for news in self._waiters.values():
            _tell(news)

    def _check(self, interrupted: Callable[[], QnnError | None] | None) -> None:
        if self._closed is not None:
            raise self._closed()
        error = interrupted() if interrupted is not None else None
        if error is not None:
            raise error


def _tell(news: threading.Lock) -> None:
    if news.locked():
        news.release()


def _seconds_to(t_ns: int) -> float:
    return max(0.0, (t_ns - time.monotonic_ns()) / 1e9)
