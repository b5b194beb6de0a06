"""Requests of a process to its machine: processors of threads, threads of products, freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
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


# The threads of numpy's products: small products take many times longer on several, which spin in between.


_UMATH = ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath")
# OpenBLAS has other names for its functions in wheels of numpy, and where integers have 64 bits.
_SPELLINGS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")

_lock = threading.Lock()
# The number of threads that was set before, once for each user.
_before: list[int] = []


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let products of numpy run on the thread that asks for them, in the whole process.

    Where numpy has no OpenBLAS, nothing changes. What was set before comes back with the end of the last user.
    """
    controls = _controls()
    if controls is None:
        yield
        return
    count, choose = controls
    with _lock:
        _before.append(_before[0] if _before else count())
        choose(1)
    try:
        yield
    finally:
        with _lock:
            threads = _before.pop()
            if not _before:
                choose(threads)


def blas_threads() -> int | None:
    """How many there are; None where nobody can tell."""
    controls = _controls()
    return None if controls is None else controls[0]()


@cache
def _controls() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    module = next((sys.modules[name] for name in _UMATH if name in sys.modules), None)
    path = getattr(module, "__file__", None)
    if path is None:
        return None
    # Names are looked up in what numpy's own library is linked with, too.
    library = ctypes.CDLL(path)
    for spelling in _SPELLINGS:
        with contextlib.suppress(AttributeError):
            return library[spelling.format("get_num_threads")], library[spelling.format("set_num_threads")]
    return None
