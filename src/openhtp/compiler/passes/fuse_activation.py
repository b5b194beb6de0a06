"""Fuse a clamp (Relu and its family) into the node that feeds it.

The intermediate tensor disappears, and with it one rounding. That is allowed when the intermediate could hold
everything that the clamped result can: then the only difference is a result closer to the exact one.
"""

from __future__ import annotations

import dataclasses

from openhtp.compiler.draft import Draft
from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ops import Work, find_op
from openhtp.ops.relu import clamp_bounds
from openhtp.program.program import Clamp, ProgramNode


def fuse_activation(draft: Draft) -> Draft:
    """Merge each clamp into its producer where the producer takes one and nobody else reads the producer."""
    uses = draft.uses()
    by_output: dict[str, int] = {}
    nodes: list[ProgramNode | None] = []
    for node in draft.nodes:
        merged = None
        bounds = clamp_bounds(draft.resolved(node))
        if bounds is not None:
            source = node.call.inputs[0]
            assert source is not None
            place = by_output.get(source.name)
            producer = None if place is None else nodes[place]
            if producer is not None and uses[source.name] == 1 and _may_fuse(producer, node, bounds):
                merged = _merge(producer, node, Clamp(*bounds))
                assert place is not None
                nodes[place] = None
        nodes.append(merged or node)
        by_output.update({spec.name: len(nodes) - 1 for spec in node.call.outputs})
    return draft.with_nodes(node for node in nodes if node is not None)


def _may_fuse(producer: ProgramNode, clamp: ProgramNode, bounds: tuple[float, float]) -> bool:
    between, result = producer.call.outputs[0], clamp.call.outputs[0]
    return (
        find_op(producer.call.op).takes_activation
        and producer.clamp is None
        and between.kind is TensorKind.NATIVE
        and len(producer.call.outputs) == 1
        and between.dtype == result.dtype
        and _holds(between, result, bounds)
    )


def _holds(between: TensorSpec, result: TensorSpec, bounds: tuple[float, float]) -> bool:
    """Whether the range of ``between`` covers the clamped range of ``result``, up to half a step."""
    if not between.dtype.is_fixed_point:
        return True
    if not isinstance(between.quant, ScaleOffset) or not isinstance(result.quant, ScaleOffset):
        return False
    has_low, has_high = _range(between, between.quant)
    needs_low, needs_high = _range(result, result.quant)
    slack = 0.5 * result.quant.scale
    return has_low <= max(needs_low, bounds[0]) + slack and has_high >= min(needs_high, bounds[1]) - slack


def _range(spec: TensorSpec, quant: ScaleOffset) -> tuple[float, float]:
    low, high = spec.dtype.integer_range
    return quant.scale * (low + quant.offset), quant.scale * (high + quant.offset)


def _merge(producer: ProgramNode, clamp: ProgramNode, bounds: Clamp) -> ProgramNode:
    call = producer.call
    work = producer.work
    # The clamp rides on the producer's output while it is in registers: no bytes of its own.
    added = Work(work.macs, work.vector_ops + clamp.work.vector_ops, work.bytes_read, clamp.work.bytes_written)
    return dataclasses.replace(
        producer,
        call=OpCall(call.op, call.name, call.inputs, clamp.call.outputs, call.params, call.package),
        work=added,
        sources=producer.sources + clamp.sources,
        clamp=bounds,
    )
