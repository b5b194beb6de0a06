"""Arithmetic with constants, one op after the other, is one pass over the data."""

from __future__ import annotations

from openhtp.compiler.joining import join_chains
from openhtp.ops import find_op
from openhtp.program.htp_program import HtpProgram, Kernel

_CONSTANT_KINDS = ("affine", "divide", "image_norm")
"""Of two that are joined, the later one here counts: it is the dearer."""


def join_constants(program: HtpProgram) -> HtpProgram:
    """Join each chain of ops with constants; conversions may begin one."""
    return join_chains(program, _grow)


def _grow(kernel: Kernel, reader: Kernel) -> Kernel | None:
    kinds = (kernel.kind, reader.kind)
    if not set(kinds) <= set(_CONSTANT_KINDS) or not find_op(reader.op).affine_by_constant:
        return None
    # A division of two tensors is of the same kind, but no pass over one of them.
    if len(reader.nodes) != 1 or kernel.outputs[0] not in reader.nodes[0].inputs or "divide" in kinds:
        return None
    return Kernel((*kernel.nodes, *reader.nodes), max(kinds, key=lambda kind: _CONSTANT_KINDS.index(str(kind))))
