"""Where a program may yield: after every kernel that keeps a unit busy."""

from __future__ import annotations

import dataclasses

from openhtp.program.htp_program import HtpProgram, Step


def mark_steps(program: HtpProgram) -> HtpProgram:
    """Cut the kernels into steps. Kernels that take no time go with the next one, at the end with the last."""
    ends = [place + 1 for place, kernel in enumerate(program.kernels) if kernel.units]
    ends[-1] = len(program.kernels)
    steps = tuple(Step(begin, end) for begin, end in zip([0, *ends], ends, strict=False))
    return dataclasses.replace(program, steps=steps)
