"""Requests of a process to its machine: the processors that threads run on, and the return of freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from functools import cache


def processor_count() -> int:
    """How many processors this thread may run on."""
    return len(os.sched_getaffinity(0))


def current_processor() -> int:
    """The processor that this thread runs on now; -1 where the C library cannot tell."""
    ask = _asking()
    return -1 if ask is None else ask()


@contextlib.contextmanager
def away_from(processor: int) -> Iterator[None]:
    """Run this thread on any processor but one, if there is another.

    Otherwise a thread may begin behind the thread that woke it. Where all processors were busy a moment ago, the
    kernel does not look whether one of them is idle now, and takes milliseconds to find out.
    Where a sandbox forbids it, the thread stays where it is.
    """
    own = os.sched_getaffinity(0)
    others = own - {processor}
    if not others or others == own:
        yield
        return
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, others)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, own)


@cache
def _asking() -> Callable[[], int] | None:
    return getattr(ctypes.CDLL(None), "sched_getcpu", None)


WORTH_GIVING_BACK = 128 << 20
"""Freed bytes from which on giving them back pays. The next load then takes a third longer, as the system has to
find and clear its pages anew, and a program that frees a context often makes another."""


def give_back_freed() -> None:
    """Give freed memory back to the system now, where the C library can do that (glibc)."""
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim
