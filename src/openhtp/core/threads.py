"""Threads of ours, which a caller can start and wait for wherever an interrupt may come.

``threading.Thread.start`` waits on an ``Event`` for the new thread. A caller that is interrupted there leaves the
event's lock taken, and the new thread, which needs it to begin, hangs for good. So another thread, to which no
signal comes, starts them; and waiting for an end is a ``Latch`` (``core/latches.py``).
"""

from __future__ import annotations

import _thread
import functools
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from openhtp.core.latches import Latch, Promise

log = logging.getLogger(__name__)

_T = TypeVar("_T")

Order = Callable[[], object]


class _Starter:
    """The thread that starts threads. Of several that were started to serve the orders, one does."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._servers: dict[None, int] = {}
        self.order: Callable[[Order], None] = self._orders.put

    def start(self) -> None:
        """Make sure that it runs. After an interrupt here, the next call may start another, which ends at once."""
        if not self._servers:
            _thread.start_new_thread(self._serve, ())

    def _serve(self) -> None:
        me = _thread.get_ident()
        if self._servers.setdefault(None, me) != me:
            return
        while True:
            self._orders.get()()


_starter = _Starter()
_threads: weakref.WeakSet[OwnThread] = weakref.WeakSet()


class OwnThread(threading.Thread):
    """Make it, keep it, then start it: a caller that is interrupted in ``start`` has it in hand.

    The interpreter ends without waiting for it unless it ``holds_up_exit``, as it must where native code runs.
    """

    def __init__(
        self, work: Callable[..., object], *arguments: object, name: str, holds_up_exit: bool = False
    ) -> None:
        super().__init__(target=work, args=arguments, name=name, daemon=not holds_up_exit)
        self._over = Latch()
        _threads.add(self)

    def start(self) -> None:
        """Start it. Raises RuntimeError if the system has no more threads."""
        _starter.start()
        started: Promise[None] = Promise()
        _starter.order(functools.partial(started.settle, self._begin))
        started.result()

    def _begin(self) -> None:
        """The start itself, on the thread that starts threads."""
        try:
            super().start()
        except BaseException:
            self._over.unlock()
            raise

    def run(self) -> None:
        """Do the work, on the thread."""
        try:
            super().run()
        finally:
            self._over.unlock()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, at most ``timeout`` seconds. A thread whose start was cut short may not have begun."""
        if self.ident is None:
            begun = Latch()
            _starter.start()
            _starter.order(begun.unlock)  # its own order, if there is one, was before this
            begun.wait(timeout)
            if self.ident is None:
                return
        self._over.wait(timeout)

    def is_alive(self) -> bool:
        """Whether it is under way."""
        return self.ident is not None and not self._over.is_open


class Errands:
    """Does one task after another, on a thread that is there while there are some."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._runner: threading.Thread | None = None

    def post(self, task: Callable[[], object]) -> None:
        """Queue a task behind the others; an error goes to the log."""
        self._tasks.put(task)
        with self._lock:
            if self._runner is None or not self._runner.is_alive():  # as in the child of a fork
                thread = OwnThread(self._run, name=self._name, holds_up_exit=True)
                thread.start()
                self._runner = thread

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self._lock:
                # If its start was interrupted, there may be another.
                if self._runner not in (None, me):
                    return
                self._runner = None if self._tasks.empty() else me
                if self._runner is None:
                    return
            task = self._tasks.get()
            try:
                task()
            except BaseException:
                log.exception("doing %r", task)
            del task


def beside(work: Callable[[], _T], *, name: str) -> Promise[_T]:
    """Do work on a thread of its own."""
    promise: Promise[_T] = Promise()
    OwnThread(promise.settle, work, name=name).start()
    return promise


def finish(work: Callable[[], _T], *, name: str, discard: Callable[[_T], object] = lambda result: None) -> _T:
    """Do work that must not stop half-way on a thread of ours, and wait for it. Its errors are raised here.

    If the wait is interrupted, the work is finished all the same, and ``discard`` gets the result. On a thread of
    ours, which nothing interrupts, the work is done at once.
    """
    if isinstance(threading.current_thread(), OwnThread):
        return work()
    promise: Promise[_T] = Promise()

    def give_back() -> None:
        if promise.exception() is None:
            discard(promise.result())

    working = OwnThread(promise.settle, work, name=name)
    forsaken = functools.partial(_discard_late, working, promise, OwnThread(give_back, name=name))
    try:
        try:
            working.start()
        except RuntimeError:  # the system has no more threads, or the program is at its end: then here
            return work()
        return promise.result()
    except BaseException:
        _starter.order(forsaken)
        raise


def _discard_late(working: OwnThread, promise: Promise[_T], discarding: OwnThread) -> None:
    """Discard a result that nobody waits for, on the thread that starts threads."""
    if working.ident is not None and not (promise.done() and promise.exception() is not None):
        discarding._begin()


def _start_anew() -> None:
    """Start anew in the child of a fork, which has none of the parent's threads."""
    global _starter  # noqa: PLW0603
    _starter = _Starter()
    for thread in list(_threads):
        thread._over.unlock()


os.register_at_fork(after_in_child=_start_anew)
