"""Memory for what one execution hands from one segment to the next."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_HUGE_PAGE = 2 << 20
_LINE = 64
# Below this, most of a huge page would lie idle.
_WORTH_A_HUGE_PAGE = _HUGE_PAGE // 2


def make_slots(sizes: Sequence[int]) -> list[npt.NDArray[Any]]:
    """Bytes for each slot, on as few pages of the machine as it has to offer.

    On small pages, which the system takes from all over the memory, some values get into each other's way in the
    cache, for as long as the execution's bindings live.
    """
    rooms = [-(-size // _LINE) * _LINE for size in sizes]
    ends = list(itertools.accumulate(rooms, initial=0))
    total = ends[-1]
    if total < _WORTH_A_HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return [np.empty(size, np.uint8) for size in sizes]
    mapped = mmap.mmap(-1, -(-total // _HUGE_PAGE) * _HUGE_PAGE + _HUGE_PAGE, flags=mmap.MAP_PRIVATE)
    mapped.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapped, np.uint8)  # keeps the mapping for as long as anything of it is used
    begin = -memory.ctypes.data % _HUGE_PAGE
    return [memory[begin + place : begin + place + size] for place, size in zip(ends, sizes, strict=False)]
