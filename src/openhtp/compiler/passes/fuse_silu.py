"""A Sigmoid that only feeds the product with its own input is one look-up."""

from __future__ import annotations

from openhtp.compiler.joining import join_chains
from openhtp.program.htp_program import HtpProgram, Kernel


def fuse_silu(program: HtpProgram) -> HtpProgram:
    """Join each Sigmoid with the product of it and its input."""
    return join_chains(program, _grow)


def _grow(kernel: Kernel, reader: Kernel) -> Kernel | None:
    if (kernel.op, reader.op, len(kernel.nodes)) != ("Sigmoid", "ElementWiseMultiply", 1):
        return None
    if kernel.nodes[0].inputs[0] not in reader.nodes[0].inputs:
        return None
    return Kernel((*kernel.nodes, *reader.nodes), "silu")
