"""Which units each kernel keeps busy."""

from __future__ import annotations

import dataclasses

from openhtp.core.kinds import MATRIX_KINDS, MOVES_NOTHING
from openhtp.program.htp_program import HtpProgram, Kernel, Unit


def assign_units(program: HtpProgram) -> HtpProgram:
    """Say of every kernel what it keeps busy. A change of shape alone keeps nothing busy."""
    kernels = tuple(dataclasses.replace(kernel, units=_units(kernel, program)) for kernel in program.kernels)
    return dataclasses.replace(program, kernels=kernels)


def _units(kernel: Kernel, program: HtpProgram) -> frozenset[Unit]:
    found = set()
    if kernel.kind in MATRIX_KINDS:
        found.add(Unit.HMX)
    if kernel.kind != MOVES_NOTHING:
        found.add(Unit.HVX)  # of a product, too: it brings results back to their stored type
    specs = [program.tensors[name] for name in (*kernel.inputs, *kernel.outputs)]
    # Weights come from DDR, and so does what the client writes or reads.
    if any(spec.name in program.statics or spec.kind.is_input or spec.kind.is_output for spec in specs):
        found.add(Unit.DMA)
    return frozenset(found)
