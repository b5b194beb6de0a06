"""Memory that was freed, and that the C library keeps for later."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

WORTH_GIVING_BACK = 128 << 20
"""Freed bytes for which it is worth to look through the heap, and to have pages found and cleared anew later on.

That makes the next load take longer by a third, and whoever frees a context often makes another.
"""


def give_back_freed() -> None:
    """What was freed goes back to the system now, where the C library can do that (glibc)."""
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    found = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if found is not None:
        found.argtypes, found.restype = [ctypes.c_size_t], ctypes.c_int
    return found
