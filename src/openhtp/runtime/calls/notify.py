"""The thread that runs user callbacks, in completion order and never under a lock of ours."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable

from openhtp.core import status as st
from openhtp.core.locks import make_lock
from openhtp.core.threads import OwnThread
from openhtp.runtime.instruments.instrument import hooked

log = logging.getLogger(__name__)

SLOW_CALLBACK_NS = 10_000_000


Posted = tuple[Callable[..., object], tuple[object, ...], Callable[[], object] | None]


def own_niceness() -> int:
    """That of the calling thread: on Linux each has its own."""
    return os.getpriority(os.PRIO_PROCESS, 0)


class Notification:
    """How a client is told the end of its execution: at most as urgently as it called, and in time or too late.

    A timeout covers the wait for the callback, too: one that is called later hears of that. Only a privileged
    process gets back the urgency that a thread had before a less urgent caller.
    """

    __slots__ = ("_function", "_niceness", "_now", "_timeout_at")

    def __init__(
        self, function: Callable[..., object], niceness: int, timeout_at: int, now: Callable[[], int]
    ) -> None:
        self._function = function
        self._niceness = niceness
        self._timeout_at = timeout_at  # 0: none
        self._now = now

    def __call__(self, param: object, status: int) -> None:
        """On the notify thread."""
        if own_niceness() != self._niceness:
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, self._niceness)
        if not status and self._timeout_at and self._now() >= self._timeout_at:
            status = st.QNN_GRAPH_ERROR_TIMED_OUT.code
        self._function(param, status)

    def __repr__(self) -> str:
        return repr(self._function)


@hooked(post="notification")
class Notifier:
    """Runs callbacks one after another. A slow one delays later notifications.

    How many executions may wait for theirs is for the queues of contexts to say: see ``Places``.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Posted | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._start = make_lock("notify")

    def post(
        self, function: Callable[..., object], *args: object, after: Callable[[], object] | None = None
    ) -> None:
        """Run ``function(*args)`` soon, also when it is closed: whoever asks late is answered all the same.

        ``after`` is run when the function has returned or raised.
        """
        self._queue.put((function, args, after))
        if self._thread is None:
            self._ensure_thread()

    def close(self, timeout: float | None = None) -> None:
        """End the thread after the callbacks already posted, and wait for them, unless called by one of them.

        With a ``timeout`` in seconds, those that were not begun by then are dropped, and the log says how many.
        """
        self._closed = True
        thread = self._thread
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
        self._queue.put(None)

    def is_this_thread(self) -> bool:
        """Whether the caller is a callback."""
        thread = self._thread
        return thread is not None and thread.ident == threading.get_ident()

    def _drop(self) -> int:
        """Forget what was not begun, and end after what was; returns how many callbacks that is."""
        dropped = 0
        with contextlib.suppress(queue.Empty):
            while True:
                dropped += self._queue.get_nowait() is not None
        self.stop()
        return dropped

    def _ensure_thread(self) -> None:
        try:
            with self._start:
                if self._thread is None:
                    thread = OwnThread(self._run, name="openhtp-notify")
                    thread.start()
                    self._thread = thread
                    if self._closed:
                        self.stop()
        except Exception:  # no thread to be had now: what was posted runs with what is posted next
            log.exception("the notify thread cannot be started")

    def _is_the_one(self) -> bool:
        """Whether this thread runs the callbacks. If its start was interrupted, there may be another."""
        me = threading.current_thread()
        with self._start:
            if self._thread is None:
                self._thread = me
            return self._thread is me

    def _may_end(self) -> bool:
        """Whether nothing was posted behind the word to end; if so, the thread is over."""
        with self._start:
            if self._queue.empty():
                self._thread = None
                return True
        self.stop()
        return False

    def _run(self) -> None:
        if not self._is_the_one():
            return
        clock = time.monotonic_ns
        while True:
            item = self._queue.get()
            if item is None:
                if self._may_end():
                    return
                continue
            function, args, after = item
            begin = clock()
            try:
                function(*args)
            except BaseException:
                # A callback's failure is its author's to see; the executions behind it are not at fault.
                with contextlib.suppress(BaseException):
                    log.exception("notify callback %r raised", function)
            took = clock() - begin
            if took > SLOW_CALLBACK_NS:
                with contextlib.suppress(BaseException):
                    log.warning(
                        "notify callback %r took %.1f ms; later notifications waited", function, took / 1e6
                    )
            if after is not None:
                try:
                    after()
                except BaseException:
                    with contextlib.suppress(BaseException):
                        log.exception("what comes after a notify callback failed")
            del item, function, args, after
