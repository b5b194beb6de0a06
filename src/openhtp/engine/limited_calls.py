"""Calls of code that is not ours: on threads of their own, for a limited time.

Threads are kept and used again, as starting one takes longer than most calls. A thread whose call took too long is
not used again: an exception is raised in it, which ends Python code wherever it is. Code that waits in C for good
keeps its thread, and no other thread waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
from collections.abc import Callable
from typing import Any, NamedTuple

from openhtp.core.latches import Promise
from openhtp.core.threads import OwnThread


class CallAbandoned(BaseException):
    """Raised in a call that took too long. It is no ``Exception``, so the call's own handlers do not catch it."""


class CallTookTooLong(Exception):
    """The call did not end in time."""


class CallFailed(Exception):
    """The call raised ``error``."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class _PendingCall(NamedTuple):
    work: Callable[[], Any]
    promise: Promise[Any]


class _CallThread:
    """A thread that makes one call after another."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_PendingCall | None] = queue.SimpleQueue()
        self.thread = OwnThread(self._serve, name="openhtp-call")
        self.thread.start()

    def take(self, work: Callable[[], Any]) -> Promise[Any]:
        promise: Promise[Any] = Promise()
        self._calls.put(_PendingCall(work, promise))
        return promise

    def _serve(self) -> None:
        with contextlib.suppress(CallAbandoned):
            while (pending := self._calls.get()) is not None:
                pending.promise.settle(pending.work)
                del pending  # the arrays of a call must not stay until the next

    def abandon(self) -> None:
        """End the call that is under way, and the thread with it."""
        ident, error = ctypes.c_ulong(self.thread.ident or 0), ctypes.py_object(CallAbandoned)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, error)
        self._calls.put(None)


_idle: list[_CallThread] = []


def call_within(limit_s: float, work: Callable[[], Any]) -> Any:
    """Make a call on another thread. Raises CallTookTooLong, or CallFailed with what the call raised."""
    try:
        thread = _idle.pop()
    except IndexError:
        thread = _CallThread()
    promise = thread.take(work)
    try:
        error = promise.exception(limit_s)
    except TimeoutError:
        thread.abandon()
        raise CallTookTooLong from None
    except BaseException:  # the caller was interrupted
        thread.abandon()
        raise
    _idle.append(thread)
    if error is not None:
        raise CallFailed(error)
    return promise.result()


# In the child of a fork there is none of these threads.
os.register_at_fork(after_in_child=_idle.clear)
