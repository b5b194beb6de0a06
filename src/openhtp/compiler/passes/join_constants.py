"""Arithmetic with constants, one op after the other, is one pass over the data."""

from __future__ import annotations

from openhtp.compiler.joining import join_chains
from openhtp.ops import find_op
from openhtp.program.htp_program import HtpProgram, Kernel

_CONSTANT_KINDS = ("affine", "image_norm")


def join_constants(program: HtpProgram) -> HtpProgram:
    """Join each chain of ops with constants; conversions may begin one."""
    return join_chains(program, _grow)


def _grow(kernel: Kernel, reader: Kernel) -> Kernel | None:
    if (
        kernel.kind not in _CONSTANT_KINDS
        or reader.kind != kernel.kind
        or not find_op(reader.op).affine_by_constant
    ):
        return None
    return Kernel((*kernel.nodes, *reader.nodes), kernel.kind)
