"""Marks where a program may yield: after every kernel that keeps a unit busy, and between its tiles."""

from __future__ import annotations

import dataclasses

from openhtp.compiler.sizes import row_ends, strips_of
from openhtp.compiler.vtcm.place import tiles_of
from openhtp.program.htp_program import HtpProgram, Kernel, Step


def mark_steps(program: HtpProgram) -> HtpProgram:
    """Cut the kernels into steps. Kernels that take no time join the next step; at the end, the last step."""
    ends = [index + 1 for index, kernel in enumerate(program.kernels) if kernel.units]
    ends[-1] = len(program.kernels)
    steps = tuple(
        Step(begin, end, _tile_ends(program, program.kernels[end - 1]))
        for begin, end in zip([0, *ends], ends, strict=False)
    )
    return dataclasses.replace(program, steps=steps)


def _tile_ends(program: HtpProgram, kernel: Kernel) -> tuple[int, ...]:
    """Where the tiles of a kernel end, if it is one op on rows of pixels."""
    if len(kernel.nodes) != 1 or not kernel.units:
        return ()
    node = program.source.resolved(kernel.nodes[0])
    touched = kernel.nodes[0].work.bytes_read + kernel.nodes[0].work.bytes_written
    vtcm_bytes = min(program.soc.vtcm_bytes, program.options.vtcm_bytes or program.soc.vtcm_bytes)
    return row_ends(node, tiles_of(touched, strips_of(node), vtcm_bytes))
