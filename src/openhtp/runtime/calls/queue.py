"""The bounded execution queue of a context: places for requests accepted and not yet completed.

Finished executions whose callbacks have not returned are counted beside it. When there are too many, the next
asynchronous request is held back, as by a full queue: a client that is slower than its device slows the device.
Two kinds of waiting would never end, so there are two exceptions. A callback that submits is not held back, since
the callbacks that it would wait for come after it. And when no callback has returned for a while, the running one
may be waiting for the very thread that is held back: then one request is let through, and the log says so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from openhtp.core.errors import QnnError
from openhtp.core.locks import make_lock
from openhtp.core.telling import warn_once
from openhtp.options import CONTEXT

log = logging.getLogger(__name__)

# Even in the shortest queue, this many finished executions may wait for their callbacks: the way to the notify
# thread must not hold back a client with quick callbacks.
_LEAST_UNTOLD = 32
TELLING_PATIENCE_NS = 5_000_000_000


def most_untold(depth: int) -> int:
    """How many finished executions of a queue may wait for their callbacks to return."""
    return max(depth, _LEAST_UNTOLD)


class DeliveryThread(Protocol):
    """The thread that delivers notifications, as the queue sees it."""

    def is_this_thread(self) -> bool:
        """Whether the caller is a callback."""


class PlaceHolder(Protocol):
    """The object that stands for one request."""

    @property
    def synchronous(self) -> bool:
        """Whether the caller waits for the end, so that there is no notification."""

    @property
    def notifier(self) -> DeliveryThread:
        """The teller that delivers its notification."""


class NoticeQueue(Protocol):
    """Numbered notifications, called in that order by a thread that does not report each return."""

    def returned(self) -> tuple[int, int]:
        """The number of the last notification that has returned, and the monotonic time of its return."""

    def await_return(self, number: int, places: Places) -> int:
        """Have places look again when this notification has returned. Returns the number of the last that has."""


class CallbackReturn:
    """Called after the notification of a request: tells its queue that the callback has returned."""

    __slots__ = ("holder", "places")

    def __init__(self, places: Places, holder: PlaceHolder) -> None:
        self.places = places
        self.holder = holder

    def __call__(self) -> None:
        """Runs on the notify thread."""
        self.places.told(self.holder)


def check_depth(depth: object) -> int:
    """A valid queue depth, or an error that says what is valid."""
    number: int = CONTEXT.read({"queue_depth": depth}).queue_depth
    return number


class Places:
    """The requests that have a place, and those that wait for one, in order of arrival.

    A request has a place by being in the set: there is no separate count that an interrupt could leave wrong.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._held: set[PlaceHolder] = set()
        # Each waiter has a lock of its own, which is released when there is news.
        self.waiters: dict[PlaceHolder, _Waiter] = {}
        # Finished executions whose callbacks have not returned.
        self._untold: set[PlaceHolder] = set()
        # The same for executions whose return only a queue of notices shows: their numbers there.
        self._notices: deque[int] = deque()
        self._notice_queue: NoticeQueue | None = None
        self._most_untold = most_untold(depth)
        self._held_back = False
        # When a callback last returned, or might have.
        self._told_ns = 0
        self._let_through = 0
        self._lock = make_lock("places")
        self._closed: Callable[[], QnnError] | None = None

    @property
    def used(self) -> int:
        """Requests accepted and not yet completed."""
        return len(self._held)

    def try_take(self, holder: PlaceHolder) -> bool:
        """Take a place if one is free and no request waits for it."""
        with self._lock:
            if self._closed is not None:
                raise self._closed()
            is_free = len(self._held) < self.depth and not self.waiters
            # Few are untold in most calls, which then need not ask further.
            may_be_behind = self._held_back or len(self._untold) + len(self._notices) >= self._most_untold
            if not is_free or (
                may_be_behind and self._is_behind() and not _is_urgent(holder) and not self._is_stuck()
            ):
                return False
            self._held.add(holder)
        if self._let_through:
            self._report()
        return True

    def take(
        self,
        holder: PlaceHolder,
        until_ns: int | None = None,
        interrupted: Callable[[], QnnError | None] | None = None,
    ) -> None:
        """Wait for a place and take it. ``interrupted`` is asked whenever something has changed.

        A caller that stops waiting, for whatever reason, calls ``give_back``.
        """
        news = threading.Lock()
        news.acquire()
        waiter = _Waiter(news, _is_urgent(holder))
        with self._lock:
            self.waiters[holder] = waiter
            self._hand_out()
        while holder not in self._held:
            self._check(interrupted)
            if not news.acquire(timeout=self._seconds_to_wait(until_ns)):
                with self._lock:
                    self._hand_out()  # one may be let through by now
        self._report()

    def give_back(self, holder: PlaceHolder, *, untold: bool = False) -> None:
        """A request was completed, or not sent after all. Nothing happens if it neither has a place nor waits.

        ``untold``: its notification is still to come, and ``told`` is called after it.
        """
        with self._lock:
            if untold:
                if len(self._untold) + len(self._notices) < self._most_untold:
                    self._told_ns = time.monotonic_ns()
                self._untold.add(holder)
            self._held.discard(holder)
            if self.waiters:
                self.waiters.pop(holder, None)
                self._hand_out()
                if untold and self._is_behind():
                    self._tell_all()  # from now on the waiters wait for callbacks, and not for ever

    def give_back_all(self, holders: Collection[PlaceHolder], untold: Collection[PlaceHolder]) -> None:
        """Requests with places were completed; of those that are ``untold``, a notification is still to come."""
        with self._lock:
            if untold:
                if len(self._untold) + len(self._notices) < self._most_untold:
                    self._told_ns = time.monotonic_ns()
                self._untold.update(untold)
            self._held.difference_update(holders)
            if self.waiters:
                self._hand_out()
                if untold and self._is_behind():
                    self._tell_all()  # as in ``give_back``

    def told(self, holder: PlaceHolder) -> None:
        """All callbacks of a request have returned; twice does nothing."""
        # Without the lock: a waiter that comes just now is either seen below, or counts this one as told.
        self._untold.discard(holder)
        self._told_ns = time.monotonic_ns()
        if self.waiters:
            with self._lock:
                self._hand_out()

    def noticed(self, holder: PlaceHolder, number: int, notices: NoticeQueue) -> None:
        """The notification of a finished request is on its way; nobody calls ``told`` for it."""
        self._notice_queue = notices
        self._notices.append(number)
        if self._untold:
            self._untold.discard(holder)
        if self.waiters:
            with self._lock:
                if self._is_behind():
                    self._tell_all()  # as in ``give_back``

    def look_again(self) -> None:
        """Awaited notifications have returned."""
        with self._lock:
            self._hand_out()

    def wake_all(self) -> None:
        """Let every waiter ask again whether it should go on waiting."""
        with self._lock:
            self._tell_all()

    def close(self, why: Callable[[], QnnError]) -> None:
        """Refuse all requests from now on, the waiting ones included."""
        with self._lock:
            self._closed = why
            self._tell_all()

    def _hand_out(self) -> None:
        """Give free places to the waiters. An interrupted run can simply be started again."""
        for holder in list(self.waiters):
            if holder not in self._held:
                if len(self._held) >= self.depth:
                    return
                if self._is_behind() and not self.waiters[holder].urgent and not self._is_stuck():
                    continue  # a waiting callback may stand behind it
                self._held.add(holder)
            _tell(self.waiters[holder].news)
            del self.waiters[holder]

    def _is_behind(self) -> bool:
        """Whether too many callbacks are still to return. Once true, it stays so until half have returned.

        Without that gap, threads would let each other go on for one call at a time and only take turns.
        """
        if not self._untold and not self._notices:
            self._held_back = False
            return False
        for _ in range(2):
            untold = self._count_untold()
            if untold >= self._most_untold:
                self._held_back = True
            elif untold <= self._most_untold // 2:
                self._held_back = False
            if not self._held_back or not self._notices or self._notice_queue is None:
                break
            returns = min(untold - self._most_untold // 2, len(self._notices))
            number = self._notices[returns - 1]
            if self._notice_queue.await_return(number, self) < number:
                break  # look_again is called when half of them have returned
        return self._held_back

    def _count_untold(self) -> int:
        notices = self._notices
        if notices and self._notice_queue is not None:
            last, returned_ns = self._notice_queue.returned()
            if notices[0] <= last:
                self._told_ns = max(self._told_ns, returned_ns)
            while notices and notices[0] <= last:
                notices.popleft()
        return len(self._untold) + len(notices)

    def _is_stuck(self) -> bool:
        """Whether no callback has returned for too long. If so, one request may pass and the time restarts."""
        now_ns = time.monotonic_ns()
        if now_ns - self._told_ns < TELLING_PATIENCE_NS:
            return False
        self._told_ns = now_ns
        self._let_through += 1
        return True

    def _seconds_to_wait(self, until_ns: int | None) -> float:
        """How long to wait for news; -1 means for ever."""
        with self._lock:
            is_behind = self._is_behind()
        if is_behind:
            stuck_ns = self._told_ns + TELLING_PATIENCE_NS
            return _seconds_to(stuck_ns if until_ns is None else min(until_ns, stuck_ns))
        return -1 if until_ns is None else _seconds_to(until_ns)

    def _report(self) -> None:
        """Log, under no lock, that a request was let through."""
        if self._let_through:
            self._let_through = 0
            log.warning(
                "%d finished executions wait for their notifications, and no callback returned for %.1f s; one"
                " more execution is accepted, as the callback may be waiting for that",
                len(self._untold) + len(self._notices),
                TELLING_PATIENCE_NS / 1e9,
            )

    def _tell_all(self) -> None:
        for waiter in self.waiters.values():
            _tell(waiter.news)

    def _check(self, interrupted: Callable[[], QnnError | None] | None) -> None:
        if self._closed is not None:
            raise self._closed()
        error = interrupted() if interrupted is not None else None
        if error is not None:
            raise error


class PlacesInTurn(Places):
    """The queue of a context whose graphs must run in turn with those of others, as they share buffers."""

    def __init__(self, depth: int, of_all: Callable[[], list[Places]]) -> None:
        """``of_all`` gives the queues of all of them."""
        super().__init__(depth)
        self._of_all = of_all

    def try_take(self, holder: PlaceHolder) -> bool:
        """Take a place, and say once if another of the contexts has executions under way."""
        if any(other.used for other in self._of_all() if other is not self):
            words = (
                "contexts that share resources sequentially have executions under way at the same time; on the HTP"
                " that is undefined: wait for the one before the other begins"
            )
            warn_once(log, ("sharing in turn",), words)
        return super().try_take(holder)


class _Waiter(NamedTuple):
    """A waiting request. ``news`` is released when there is any; ``urgent`` ones do not wait for callbacks."""

    news: threading.Lock
    urgent: bool


def _is_urgent(holder: PlaceHolder) -> bool:
    """Whether a request waits for no callbacks: it has no notification, or a callback submitted it."""
    return holder.synchronous or holder.notifier.is_this_thread()


def _tell(news: threading.Lock) -> None:
    if news.locked():
        news.release()


def _seconds_to(t_ns: int) -> float:
    return max(0.0, (t_ns - time.monotonic_ns()) / 1e9)
