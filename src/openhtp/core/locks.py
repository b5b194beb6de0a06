"""The locks of the runtime and the one order in which a thread may take them.

A thread that holds a lock takes only locks that stand further down. No lock is held while code of the user runs.
Tests make all locks with ``check_order(True)``: then taking one out of order raises instead of waiting for a
deadlock.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Protocol

ORDER = (
    "building",  # one thread at a time finalizes a graph
    "device",  # which link a device has, and whether it was freed
    "votes",  # which perf profile a device has; held while the device is notified
    "growth",  # one thread at a time adds slots to a pool, which asks the device to register memory
    "control",  # one request at a time is sent
    "local",  # the device in this process; held while its loop turns, which completes executions
    "bindings",
    "slots",
    "graph",
    "context",
    "signal",
    "places",
    "send",
    "execution",
    "notify",
    "logs",  # which logs there are; the last, as messages may come from anywhere
)


class Lock(Protocol):
    """The part of a lock's interface that the runtime uses."""

    def __enter__(self) -> bool:
        """Take it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Give it back."""


class LockOrderError(AssertionError):
    """A thread takes a lock that stands above one that it holds."""


class _CheckedLock:
    """A lock that knows its rank and refuses to be taken out of order."""

    def __init__(self, name: str, lock: Lock) -> None:
        self._name = name
        self._rank = ORDER.index(name)
        self._lock = lock

    def __enter__(self) -> bool:
        locks = _locks_of_thread()
        mine = any(lock is self for lock in locks)  # taken again, which only a reentrant one survives
        if locks and not mine and locks[-1]._rank >= self._rank:
            raise LockOrderError(f"{self._name!r} taken while holding {[lock._name for lock in locks]}")
        self._lock.__enter__()
        locks.append(self)
        return True

    def __exit__(self, *exc: object) -> None:
        _locks_of_thread().remove(self)
        self._lock.__exit__(None, None, None)


_checking = False
_of_thread = threading.local()


def _locks_of_thread() -> list[_CheckedLock]:
    try:
        locks: list[_CheckedLock] = _of_thread.held
    except AttributeError:
        locks = _of_thread.held = []
    return locks


def check_order(on: bool) -> bool:
    """Whether locks made from now on check their order; returns what held before."""
    global _checking
    before, _checking = _checking, on
    return before


def make_lock(name: str, *, reentrant: bool = False) -> Lock:
    """A lock with a place in the order."""
    lock: Lock = threading.Lock()
    if reentrant:
        lock = threading.RLock()
    return _CheckedLock(name, lock) if _checking else lock
