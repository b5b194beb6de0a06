"""If asked for, activations that are no clamps run in one piece with the convolution before them."""

from __future__ import annotations

import dataclasses

from openhtp.compiler.joining import join_chains
from openhtp.ops import find_op
from openhtp.program.htp_program import HtpProgram, Kernel

_ACTIVATIONS = ("unary", "silu", "prelu", "clamp")


def fuse_advanced(program: HtpProgram) -> HtpProgram:
    """Join each op with weights and the activation that alone reads it. Every result is still rounded."""
    return join_chains(program, _grow) if program.options.advanced_activation_fusion else program


def _grow(kernel: Kernel, reader: Kernel) -> Kernel | None:
    if find_op(kernel.op).weights is None or len(kernel.nodes) != 1 or reader.kind not in _ACTIVATIONS:
        return None
    return dataclasses.replace(kernel, nodes=(*kernel.nodes, *reader.nodes))
