"""Arithmetic with constants, one op after the other, is one pass over the data."""

from __future__ import annotations

from openhtp.compiler.joining import join_chains
from openhtp.compiler.passes.assign_kinds import ARITHMETIC
from openhtp.program.htp_program import HtpProgram, Kernel

_CONSTANT_KINDS = ("affine", "image_norm")


def join_constants(program: HtpProgram) -> HtpProgram:
    """Join each chain of ops with constants; conversions may begin one."""
    return join_chains(program, _grow)


def _grow(kernel: Kernel, reader: Kernel) -> Kernel | None:
    if kernel.kind not in _CONSTANT_KINDS or reader.kind != kernel.kind or reader.op not in ARITHMETIC:
        return None
    return Kernel((*kernel.nodes, *reader.nodes), kernel.kind)
