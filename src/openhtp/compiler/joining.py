"""How kernels become longer ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from openhtp.program.htp_program import HtpProgram, Kernel

Grow = Callable[[Kernel, Kernel], Kernel | None]
"""Two kernels as one, the second being all that reads the first; None if they stay apart."""


def join_chains(program: HtpProgram, grow: Grow) -> HtpProgram:
    """Let every kernel take in the one that alone reads its result, for as long as ``grow`` joins the two.

    The joined kernel runs where its last part did: all that its parts read has been made by then.
    """
    uses = program.def_use()
    place_of = {kernel.name: place for place, kernel in enumerate(program.kernels)}
    placed: list[Kernel | None] = [None] * len(program.kernels)
    taken: set[str] = set()
    for place, kernel in enumerate(program.kernels):
        if kernel.name in taken:
            continue
        while len(kernel.outputs) == 1 and (reader := uses.only_reader(kernel.outputs[0])) is not None:
            grown = None if reader.name in taken else grow(kernel, reader)
            if grown is None:
                break
            taken.add(reader.name)
            kernel, place = grown, place_of[reader.name]
        placed[place] = kernel
    return dataclasses.replace(program, kernels=tuple(kernel for kernel in placed if kernel is not None))
