"""Fuse activations into their producers: clamps, Prelu, SiLU and, if asked for, others."""

from __future__ import annotations

import dataclasses

from openhtp.compiler.clamp_folding import folded_range, holds, may_fuse
from openhtp.compiler.kernels import join_chains
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind
from openhtp.ops import Work, op_of
from openhtp.ops.relu import clamp_bounds
from openhtp.program.htp_program import Clamp, HtpNode, HtpProgram, Kernel


def fuse_activation(program: HtpProgram) -> HtpProgram:
    """Merge each clamp (Relu and its family) into its producer, if that takes a clamp and has no other reader.

    The intermediate tensor disappears, and with it one rounding. That is allowed if the intermediate tensor could
    hold all values of the clamped result: then the only difference is a result closer to the exact one. Into
    convolutions a Relu or ReluMinMax is folded always (``folded_range``), unless an option says otherwise.
    """
    off = program.options.fold_relu_activation_into_conv_off

    def grow(kernel: Kernel, reader: Kernel) -> Kernel | None:
        (producer,), (clamp,) = kernel.nodes, reader.nodes
        op = op_of(producer)
        if not op.takes_activation or producer.clamp is not None or (off and op.weights is not None):
            return None
        between, result = program.tensors[producer.outputs[0]], program.tensors[clamp.outputs[0]]
        resolved = program.source.resolved(clamp)
        bounds = clamp_bounds(resolved)
        if bounds is None or clamp.inputs[0] != between.name or not may_fuse(between, result):
            return None
        folded = folded_range(producer.op, resolved, bounds, result)
        if folded is None and holds(between, result, bounds):
            folded = bounds
        return None if folded is None else Kernel((_merge(producer, clamp, Clamp(*folded)),))

    return join_chains(program, grow)


def _merge(producer: HtpNode, clamp: HtpNode, bounds: Clamp) -> HtpNode:
    work = producer.work
    # The clamp works on the producer's output while it is in registers, so it moves no bytes of its own.
    added = Work(work.macs, work.vector_ops + clamp.work.vector_ops, work.bytes_read, clamp.work.bytes_written)
    return dataclasses.replace(
        producer,
        outputs=clamp.outputs,
        work=added,
        sources=producer.sources + clamp.sources,
        clamp=bounds,
    )


def fuse_prelu(program: HtpProgram) -> HtpProgram:
    """Join each 8-bit convolution with a Prelu that is its only reader, without a rounding in between.

    The vendor's library computes the two as one, from the accumulator on. Rounding in between would cost networks
    that are made of such pairs several decibels.
    """

    def grow(kernel: Kernel, reader: Kernel) -> Kernel | None:
        conv, prelu = kernel.nodes[-1], reader.nodes[0]
        if (conv.op, prelu.op) != ("Conv2d", "Prelu") or conv.clamp is not None:
            return None
        between = program.tensors[conv.outputs[0]]
        # The tensor must be the input only: if it were the slopes, too, it would be read in its stored form.
        if prelu.inputs[0] != between.name or prelu.inputs.count(between.name) != 1:
            return None
        eight_bits = between.dtype.is_fixed_point and between.dtype.bits == 8
        if not eight_bits or not isinstance(between.quant, ScaleOffset) or between.kind is not TensorKind.NATIVE:
            return None
        return dataclasses.replace(kernel, nodes=(dataclasses.replace(conv, rounds=False), *reader.nodes))

    return join_chains(program, grow)


def fuse_silu(program: HtpProgram) -> HtpProgram:
    """Join each Sigmoid with the product of its result and its input: one look-up."""
    return join_chains(program, _grow_silu)


def _grow_silu(kernel: Kernel, reader: Kernel) -> Kernel | None:
    if (kernel.op, reader.op, len(kernel.nodes)) != ("Sigmoid", "ElementWiseMultiply", 1):
        return None
    if kernel.nodes[0].inputs[0] not in reader.nodes[0].inputs:
        return None
    return Kernel((*kernel.nodes, *reader.nodes), "silu")


_ACTIVATIONS = ("unary", "silu", "prelu", "clamp")


def fuse_advanced(program: HtpProgram) -> HtpProgram:
    """On request, join each op with weights and an activation that is its only reader. All results are rounded."""
    return join_chains(program, _grow_advanced) if program.options.advanced_activation_fusion else program


def _grow_advanced(kernel: Kernel, reader: Kernel) -> Kernel | None:
    if op_of(kernel.nodes[0]).weights is None or len(kernel.nodes) != 1 or reader.kind not in _ACTIVATIONS:
        return None
    return dataclasses.replace(kernel, nodes=(*kernel.nodes, *reader.nodes))
