"""Another order of kernels that keeps less alive at once: a reader runs as soon as it frees more than it makes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from openhtp.compiler.sizes import KernelSize


def ordered_for_memory(kernels: Sequence[KernelSize], needs: Sequence[tuple[int, ...]]) -> list[int]:
    """Places of the kernels in an order in which each comes after all that it ``needs``.

    Of those that could run, the one goes first that makes least more than it frees; the earlier one if several do.
    """
    readers: list[list[int]] = [[] for _ in kernels]
    waiting = [len(set(each)) for each in needs]
    for place, makers in enumerate(needs):
        for maker in set(makers):
            readers[maker].append(place)
    left = [len(each) for each in readers]

    def growth(place: int) -> int:
        freed = sum(kernels[maker].written for maker in set(needs[place]) if left[maker] == 1)
        return kernels[place].written - freed

    ready = [(growth(place), place) for place, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        _, place = heapq.heappop(ready)
        found.append(place)
        for maker in set(needs[place]):
            left[maker] -= 1
        for reader in readers[place]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (growth(reader), reader))
    return found
