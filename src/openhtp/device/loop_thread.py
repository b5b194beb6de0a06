"""A device's loop on a thread of its own, in a process that has other things to do."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from openhtp.core.latches import Promise
from openhtp.core.threads import OwnThread
from openhtp.device.loop import Loop

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class LoopOver(Exception):
    """The loop has ended: nothing more is done on it."""


class LoopThread:
    """Turns a loop until told to stop, or until ``watched`` is readable, as a dead process's descriptor is."""

    def __init__(self, name: str, watched: int) -> None:
        self.over = False
        self._name = name
        self._watched = watched
        self._lock = threading.Lock()
        self._posted: deque[Callable[[], None]] = deque()
        self._waiting: set[Promise[Any]] = set()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.poll()
        for fd in (self._wake, watched):
            self._poller.register(fd, select.POLLIN)
        self._thread: OwnThread | None = None

    def start(self, loop: Loop, on_end: Callable[[], None]) -> None:
        """Begin. ``on_end`` is called once, on the thread, when the loop is over."""
        self._thread = OwnThread(self._serve, loop, on_end, name=self._name)
        self._thread.start()

    def post(self, call: Callable[[], None]) -> None:
        """Do something on the loop's thread, without waiting for it. Raises LoopOver."""
        with self._lock:
            if self.over:
                raise LoopOver
            self._posted.append(call)
            os.eventfd_write(self._wake, 1)

    def post_if_open(self, call: Callable[[], None]) -> None:
        """The same, for what need not be done when the loop is over."""
        with contextlib.suppress(LoopOver):
            self.post(call)

    def ask(self, call: Callable[[], _T]) -> _T:
        """Do something on the loop's thread and wait for what it returns or raises. Raises LoopOver."""
        answer: Promise[_T] = Promise()
        try:
            with self._lock:
                self._waiting.add(answer)
            self.post(lambda: answer.settle(call))
            return answer.result()
        finally:
            with self._lock:
                self._waiting.discard(answer)

    def stop(self) -> None:
        """End the loop after what was posted before, and wait for it."""
        self.post_if_open(self._end_now)
        if self._thread is not None:
            self._thread.join()
        os.close(self._wake)

    def leave_to_parent(self) -> None:
        """In the child of a fork there is no such thread."""
        self.over = True
        self._lock = threading.Lock()

    def _end_now(self) -> None:
        self.over = True

    def _serve(self, loop: Loop, on_end: Callable[[], None]) -> None:
        try:
            while not self.over:
                loop.turn(self)
        except Exception:
            log.exception("the loop of %s ended", self._name)
        with self._lock:
            self.over = True
            self._posted.clear()
        try:
            on_end()
        except BaseException:
            log.exception("the end of the loop of %s", self._name)
        with self._lock:
            waiting = list(self._waiting)
        for answer in waiting:
            answer.fail(LoopOver())

    # The loop's inbox

    def poll(self, timeout_ns: int | None) -> None:
        """Wait for what other threads post, or for the end of what is watched."""
        for fd, _ in self._poller.poll(None if timeout_ns is None else timeout_ns / 1e6):
            if fd == self._watched:
                self.over = True
                return
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._posted and not self.over:
            self._posted.popleft()()

    def flush(self) -> None:
        """Completions are handed over at once."""
