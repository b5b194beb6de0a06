"""The thread that runs user callbacks, in completion order and never under a lock of ours."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from openhtp.core import status as st
from openhtp.core.locks import make_lock
from openhtp.core.threads import OwnThread
from openhtp.runtime.instruments.instrument import hooked

if TYPE_CHECKING:
    from openhtp.runtime.calls.queue import Places

log = logging.getLogger(__name__)

# By names of our own, as every asynchronous call asks.
_getpriority, _PROCESS = os.getpriority, os.PRIO_PROCESS
SLOW_CALLBACK_NS = 10_000_000


class EndedCall(Protocol):
    """A call that ended well, as its notification needs it."""

    notify: Callable[[Any, int], object] | None
    notify_param: object
    niceness: int

    @property
    def places(self) -> Places:
        """The queue that learns of the return of its callback."""


Posted = tuple[Callable[..., object], tuple[object, ...], Callable[[], object] | None]
"""The function to call, its arguments, and the function to call afterwards."""


def own_niceness() -> int:
    """The niceness of the calling thread: on Linux each thread has its own."""
    return _getpriority(_PROCESS, 0)


class Notification:
    """How a client is notified of an execution's end: at most as urgently as it called, and in time or too late.

    A timeout covers the wait for the callback, too: a callback that is called later gets that status. Only a
    privileged process gets back the urgency that a thread had before a less urgent caller.
    """

    __slots__ = ("_now", "function", "niceness", "timeout_at")

    def __init__(
        self, function: Callable[..., object], niceness: int, timeout_at: int, now: Callable[[], int]
    ) -> None:
        self.function = function
        self.niceness = niceness
        self.timeout_at = timeout_at  # 0: none
        self._now = now

    def __call__(self, param: object, status: int) -> None:
        """On the notify thread."""
        if own_niceness() != self.niceness:
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, self.niceness)
        if not status and self.timeout_at and self._now() >= self.timeout_at:
            status = st.QNN_GRAPH_ERROR_TIMED_OUT.code
        self.function(param, status)

    def __repr__(self) -> str:
        return repr(self.function)


@hooked(post="notification")
class Notifier:
    """Runs callbacks one after another. A slow one delays later notifications.

    How many executions may wait for theirs is for the queues of contexts to say: see ``Places``.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Posted | deque[EndedCall] | None] = queue.SimpleQueue()
        # Calls that ended at the same time, and are not notified yet.
        self._ended: deque[EndedCall] = deque()
        self.thread: threading.Thread | None = None
        self._closed = False
        self._start = make_lock("notify")

    def post(
        self, function: Callable[..., object], *args: object, after: Callable[[], object] | None = None
    ) -> None:
        """Run ``function(*args)`` soon, also after the notifier is closed: late callers are answered, too.

        ``after`` is run when the function has returned or raised.
        """
        self._put((function, args, after))
        if self.thread is None:
            self._ensure_thread()

    def post_ends(self, calls: deque[EndedCall]) -> None:
        """Notify soon, in this order, that calls have ended well: one entry of the queue for all of them."""
        self._queue.put(calls)
        if self.thread is None:
            self._ensure_thread()

    def tell(self, function: Callable[..., object], status: int, after: Callable[[], object]) -> None:
        """Run ``function(None, status)`` soon, as urgently as this thread is."""
        self.post(Notification(function, own_niceness(), 0, time.monotonic_ns), None, status, after=after)

    def expect(self, at_ns: int) -> None:
        """The next notification is expected at that time of the monotonic clock. Here nobody prepares for it."""

    def close(self, timeout: float | None = None) -> None:
        """End the thread after the callbacks already posted, and wait for them, unless called by one of them.

        With a ``timeout`` in seconds, those that were not begun by then are dropped, and the log says how many.
        """
        self._closed = True
        thread = self.thread
        if thread is None:
            return
        self.stop()
        if threading.current_thread() is thread:
            return
        thread.join(timeout)
        if thread.is_alive():
            dropped = self._drop()
            log.warning(
                "a notify callback still runs after %.1f s; it and %d more that wait are dropped", timeout, dropped
            )

    def stop(self) -> None:
        """End the thread after the callbacks already posted; does not wait."""
        self._put(None)

    def is_this_thread(self) -> bool:
        """Whether the caller is a callback."""
        thread = self.thread
        return thread is not None and thread.ident == threading.get_ident()

    def _put(self, item: Posted | None) -> None:
        """Queue something to call, or the word to end."""
        self._queue.put(item)

    def _next(self) -> Posted | deque[EndedCall] | None:
        """Wait for the next entry of the queue, on the notify thread."""
        return self._queue.get()

    def _is_empty(self) -> bool:
        """Whether nothing is queued."""
        return self._queue.empty()

    def _drop(self) -> int:
        """Forget callbacks that were not begun, and end after the one that runs; return how many these were."""
        dropped = len(self._ended)
        self._ended.clear()
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                dropped += len(item) if isinstance(item, deque) else item is not None
        self.stop()
        return dropped

    def _ensure_thread(self) -> None:
        try:
            with self._start:
                if self.thread is None:
                    thread = OwnThread(self._run, name="openhtp-notify")
                    thread.start()
                    self.thread = thread
                    if self._closed:
                        self.stop()
        except Exception:  # no thread to be had now: what was posted runs with what is posted next
            log.exception("the notify thread cannot be started")

    def _is_the_one(self) -> bool:
        """Whether this thread runs the callbacks. If its start was interrupted, there may be another."""
        me = threading.current_thread()
        with self._start:
            if self.thread is None:
                self.thread = me
            return self.thread is me

    def _may_end(self) -> bool:
        """Whether nothing is left behind the word to end; if so, the thread is over."""
        with self._start:
            me, self.thread = self.thread, None  # first, so that the next post starts another thread
            if self._is_empty():
                return True
            self.thread = me
        return False

    def _run(self) -> None:
        if not self._is_the_one():
            return
        is_to_end = False
        while True:
            item = self._next()
            if item is None:
                is_to_end = True
            elif isinstance(item, deque):
                self._call_ends(item)
                del item
            else:
                self._call(*item)
                del item
            if is_to_end and self._may_end():
                return

    def _call(
        self, function: Callable[..., object], args: tuple[object, ...], after: Callable[[], object] | None
    ) -> None:
        begin = time.monotonic_ns()
        try:
            function(*args)
        except BaseException:
            # A callback's failure is its author's to see; the executions behind it are not at fault.
            with contextlib.suppress(BaseException):
                log.exception("notify callback %r raised", function)
        took_ns = time.monotonic_ns() - begin
        if took_ns > SLOW_CALLBACK_NS:
            self._report_slow(function, took_ns)
        if after is not None:
            try:
                after()
            except BaseException:
                with contextlib.suppress(BaseException):
                    log.exception("the function after a notify callback failed")

    def _call_ends(self, calls: deque[EndedCall]) -> None:
        """Notify of calls that ended well. Their niceness is compared with the thread's at the begin."""
        self._ended = calls
        niceness, begin = own_niceness(), time.monotonic_ns()
        while calls:
            try:
                call = calls.popleft()
            except IndexError:  # dropped just now
                return
            if call.niceness != niceness:
                with contextlib.suppress(PermissionError):
                    os.setpriority(os.PRIO_PROCESS, 0, call.niceness)
                niceness = own_niceness()
            try:
                assert call.notify is not None
                call.notify(call.notify_param, 0)
            except BaseException:
                with contextlib.suppress(BaseException):
                    log.exception("notify callback %r raised", call.notify)
            end = time.monotonic_ns()
            if end - begin > SLOW_CALLBACK_NS:
                self._report_slow(call.notify, end - begin)
            begin = end
            try:
                call.places.told(call)  # type: ignore[arg-type]
            except BaseException:
                with contextlib.suppress(BaseException):
                    log.exception("the function after a notify callback failed")

    def _report_slow(self, function: object, took_ns: int) -> None:
        with contextlib.suppress(BaseException):
            # By name: a handler that keeps records would keep alive what the callback holds.
            log.warning(
                "notify callback %s took %.1f ms; later notifications waited", repr(function), took_ns / 1e6
            )
