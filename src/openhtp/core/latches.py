"""Waiting for another thread, in a way that an interrupt can end anywhere and leave nothing behind.

What a signal handler raises (Ctrl-C) comes on the main thread between any two steps of Python code. ``Event``,
``Condition``, ``Queue``, ``Semaphore`` and ``Future`` of the standard library are Python code that holds a lock:
a thread that is interrupted within them leaves it locked for good, and all others hang. Here nothing is locked.
Each waiter has a queue of its own, through which it is woken; waiting and waking are one call into C each. See
decision 027.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import time
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Latch:
    """Closed until it is opened, and open from then on.

    It is opened on a thread of ours. A caller that opens it may be interrupted before all waiters are woken. Such
    a caller must open it again, or its waiters must look from time to time.
    """

    __slots__ = ("calls", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        # Functions to call when it opens. The thread that takes one out of the list calls it.
        self.calls: list[Callable[[], object]] = []

    def unlock(self) -> None:
        """Let all waiters go on. A second call does nothing."""
        self.is_open = True
        while self.calls:
            try:
                call = self.calls.pop(0)
            except IndexError:  # another took the last
                return
            _make(call)

    def then(self, call: Callable[[], object]) -> None:
        """Make a call when it opens, on the thread that opens it; here and now if it is open.

        The log has what it raises.
        """
        self.calls.append(call)
        # A thread that opened it before that may have seen the list without it.
        if self.is_open and self._withdraw(call):
            _make(call)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the latch is open, for ``timeout`` seconds at most; return whether it is open."""
        if self.is_open:
            return True
        until = None if timeout is None else time.monotonic() + timeout
        news: queue.SimpleQueue[None] = queue.SimpleQueue()
        call = functools.partial(news.put, None)
        try:
            self.then(call)
            while not self.is_open:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    break
                with contextlib.suppress(queue.Empty):
                    news.get(timeout=left)
        finally:
            if not self.is_open:
                self._withdraw(call)
        return self.is_open

    def _withdraw(self, call: Callable[[], object]) -> bool:
        """Take a call out of the list; False if somebody else did."""
        try:
            self.calls.remove(call)
        except ValueError:
            return False
        return True

    def __await__(self) -> Generator[Any, None, None]:
        import asyncio  # code that awaits has it already; other code need not load it

        if self.is_open:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(None))

        self.then(wake)
        try:
            yield from future
        finally:
            self._withdraw(wake)


def _make(call: Callable[[], object]) -> None:
    """Make one call. Its error does not prevent the others."""
    try:
        call()
    except Exception:
        log.exception("telling %r of an end", call)


class Promise(Generic[_T]):
    """The later result of a thread: a value or an error. The first end counts; another does nothing."""

    __slots__ = ("_ends", "_latch")

    def __init__(self) -> None:
        # At most one: ``setdefault`` is one step, so that of two threads one is the first.
        self._ends: dict[None, tuple[_T | None, BaseException | None]] = {}
        self._latch = Latch()

    def keep(self, value: _T) -> None:
        """It was made."""
        self._end(value, None)

    def fail(self, error: BaseException) -> None:
        """End with an error."""
        self._end(None, error)

    def settle(self, work: Callable[[], _T]) -> None:
        """Compute the value here. An exception becomes the promise's error."""
        try:
            value = work()
        except BaseException as error:
            self.fail(error)
        else:
            self.keep(value)

    def done(self) -> bool:
        """Whether there is a value or an error."""
        return self._latch.is_open

    def result(self, timeout: float | None = None) -> _T:
        """Wait for the value. Raises its error, or TimeoutError if ``timeout`` seconds pass first."""
        value, error = self._wait(timeout)
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the error, None if there is none. Raises TimeoutError if ``timeout`` seconds pass first."""
        return self._wait(timeout)[1]

    def then(self, call: Callable[[], object]) -> None:
        """Make a call when it is done, on the thread that ends it; here and now if it is."""
        self._latch.then(call)

    def _end(self, value: _T | None, error: BaseException | None) -> None:
        self._ends.setdefault(None, (value, error))
        self._latch.unlock()

    def _wait(self, timeout: float | None) -> tuple[_T | None, BaseException | None]:
        if not self._latch.wait(timeout):
            raise TimeoutError(f"not done after {timeout} s")
        return self._ends[None]

    def __await__(self) -> Generator[Any, None, _T]:
        yield from self._latch.__await__()
        return self.result()
