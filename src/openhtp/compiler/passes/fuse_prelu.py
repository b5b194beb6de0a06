"""A convolution and its Prelu are one kernel, in 8 bits without a rounding in between.

The vendor's library computes the two as one, from the accumulator on. Rounding in between would cost networks that
are made of such pairs several decibels.
"""

from __future__ import annotations

import dataclasses

from openhtp.compiler.joining import join_chains
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind
from openhtp.program.htp_program import HtpProgram, Kernel

_PRODUCER = "Conv2d"
_CONSUMER = "Prelu"


def fuse_prelu(program: HtpProgram) -> HtpProgram:
    """Join each 8-bit convolution with the Prelu that alone reads it."""

    def grow(kernel: Kernel, reader: Kernel) -> Kernel | None:
        conv, prelu = kernel.nodes[-1], reader.nodes[0]
        if (conv.op, prelu.op) != (_PRODUCER, _CONSUMER) or conv.clamp is not None:
            return None
        between = program.tensors[conv.outputs[0]]
        # It is the input alone: as slopes, too, it would be read as it is stored.
        if prelu.inputs[0] != between.name or prelu.inputs.count(between.name) != 1:
            return None
        eight_bits = between.dtype.is_fixed_point and between.dtype.bits == 8
        if not eight_bits or not isinstance(between.quant, ScaleOffset) or between.kind is not TensorKind.NATIVE:
            return None
        return dataclasses.replace(kernel, nodes=(dataclasses.replace(conv, rounds=False), *reader.nodes))

    return join_chains(program, grow)
