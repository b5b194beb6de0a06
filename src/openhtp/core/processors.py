"""On which processors threads run."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from functools import cache


def available() -> int:
    """How many processors this thread may run on."""
    return len(os.sched_getaffinity(0))


def current() -> int:
    """The processor that this thread runs on now; -1 where the C library cannot tell."""
    ask = _asking()
    return -1 if ask is None else ask()


@contextlib.contextmanager
def away_from(processor: int) -> Iterator[None]:
    """Run this thread on any processor but one, if there is another.

    A thread that is to work beside the one that woke it may else begin behind it: where all processors were busy
    a moment ago, the kernel does not look whether one of them is idle now, and takes milliseconds to find out.
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
