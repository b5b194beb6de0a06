"""At the highest level of optimization kernels run in an order that spills less, where there is one."""

from __future__ import annotations

import dataclasses

from openhtp.compiler.sizes import sizes_of
from openhtp.compiler.vtcm.order import ordered_for_memory
from openhtp.compiler.vtcm.place import place, spilled_bytes
from openhtp.core.number_format import NumberFormat
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
    moved = dataclasses.replace(program, kernels=tuple(program.kernels[index] for index in order))
    return moved if _spilled(moved, vtcm_bytes) < before else program


def _spilled(program: HtpProgram, vtcm_bytes: int) -> int:
    sizes = sizes_of(program)
    formats = [size.precision or NumberFormat.FLOAT for size in sizes]
    return spilled_bytes(place(sizes, formats, vtcm_bytes))
