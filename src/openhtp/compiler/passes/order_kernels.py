"""At the highest level of optimization, kernels run in an order that spills less, if one is found."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence

from openhtp.compiler.sizes import KernelSize, sizes_of
from openhtp.compiler.vtcm.place import place, spilled_bytes
from openhtp.core.precision import NumberFormat
from openhtp.program.htp_program import HtpProgram


def order_kernels(program: HtpProgram) -> HtpProgram:
    """Reorder the kernels if that moves fewer bytes between VTCM and DDR; otherwise leave them as they are."""
    vtcm_bytes = min(program.soc.vtcm_bytes, program.options.vtcm_bytes or program.soc.vtcm_bytes)
    before = _spilled(program, vtcm_bytes)
    if not before:
        return program
    makers = {name: index for index, kernel in enumerate(program.kernels) for name in kernel.outputs}
    needs = [tuple(makers[name] for name in kernel.inputs if name in makers) for kernel in program.kernels]
    order = ordered_for_memory(sizes_of(program), needs)
    reordered = dataclasses.replace(program, kernels=tuple(program.kernels[index] for index in order))
    return reordered if _spilled(reordered, vtcm_bytes) < before else program


def _spilled(program: HtpProgram, vtcm_bytes: int) -> int:
    sizes = sizes_of(program)
    formats = [size.precision or NumberFormat.FLOAT for size in sizes]
    return spilled_bytes(place(sizes, formats, vtcm_bytes))


# Another order of kernels that keeps less alive at once: a reader runs as soon as it frees more than it makes.


def ordered_for_memory(kernels: Sequence[KernelSize], needs: Sequence[tuple[int, ...]]) -> list[int]:
    """Numbers of the kernels in an order in which each comes after all kernels that it ``needs``.

    Of the kernels that could run, the one that adds the least memory goes first; of equals, the earlier.
    """
    readers: list[list[int]] = [[] for _ in kernels]
    waiting = [len(set(each)) for each in needs]
    for kernel, makers in enumerate(needs):
        for maker in set(makers):
            readers[maker].append(kernel)
    left = [len(each) for each in readers]

    def growth(kernel: int) -> int:
        freed = sum(kernels[maker].written for maker in set(needs[kernel]) if left[maker] == 1)
        return kernels[kernel].written - freed

    ready = [(growth(kernel), kernel) for kernel, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, kernel = heapq.heappop(ready)
        order.append(kernel)
        for maker in set(needs[kernel]):
            left[maker] -= 1
        for reader in readers[kernel]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (growth(reader), reader))
    return order
