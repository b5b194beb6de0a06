"""Fuse a clamp (Relu and its family) into the node that feeds it.

The intermediate tensor disappears, and with it one rounding. That is allowed when the intermediate could hold
everything that the clamped result can: then the only difference is a result closer to the exact one.
"""

from __future__ import annotations

import dataclasses

from openhtp.compiler.joining import join_chains
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ops import Work, find_op
from openhtp.ops.relu import clamp_bounds
from openhtp.program.htp_program import Clamp, HtpNode, HtpProgram, Kernel

Bounds = tuple[float, float]


def fuse_activation(program: HtpProgram) -> HtpProgram:
    """Merge each clamp into its producer where the producer takes one and nobody else reads the producer."""

    off = program.options.fold_relu_activation_into_conv_off

    def grow(kernel: Kernel, reader: Kernel) -> Kernel | None:
        (producer,), (clamp,) = kernel.nodes, reader.nodes
        op = find_op(producer.op)
        if not op.takes_activation or producer.clamp is not None or (off and op.weights is not None):
            return None
        bounds = clamp_bounds(program.source.resolved(clamp))
        if bounds is None or not _may_fuse(producer, clamp, bounds, program):
            return None
        return Kernel((_merge(producer, clamp, Clamp(*bounds)),))

    return join_chains(program, grow)


def _may_fuse(producer: HtpNode, clamp: HtpNode, bounds: Bounds, program: HtpProgram) -> bool:
    between, result = program.tensors[producer.outputs[0]], program.tensors[clamp.outputs[0]]
    return (
        between.kind is TensorKind.NATIVE
        and clamp.inputs[0] == between.name
        and between.dtype == result.dtype
        and _holds(between, result, bounds)
    )


def _holds(between: TensorSpec, result: TensorSpec, bounds: Bounds) -> bool:
    """Whether the range of ``between`` covers the clamped range of ``result``, up to half a step."""
    if not between.dtype.is_fixed_point:
        return True
    if not isinstance(between.quant, ScaleOffset) or not isinstance(result.quant, ScaleOffset):
        return False
    has_low, has_high = _range(between, between.quant)
    needs_low, needs_high = _range(result, result.quant)
    slack = 0.5 * result.quant.scale
    return has_low <= max(needs_low, bounds[0]) + slack and has_high >= min(needs_high, bounds[1]) - slack


def _range(spec: TensorSpec, quant: ScaleOffset) -> Bounds:
    low, high = spec.dtype.integer_range
    return quant.scale * (low + quant.offset), quant.scale * (high + quant.offset)


def _merge(producer: HtpNode, clamp: HtpNode, bounds: Clamp) -> HtpNode:
    work = producer.work
    # The clamp rides on the producer's output while it is in registers: no bytes of its own.
    added = Work(work.macs, work.vector_ops + clamp.work.vector_ops, work.bytes_read, clamp.work.bytes_written)
    return dataclasses.replace(
        producer,
        outputs=clamp.outputs,
        work=added,
        sources=producer.sources + clamp.sources,
        clamp=bounds,
    )
