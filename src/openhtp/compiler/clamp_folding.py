"""Folding a clamp into the node before it: the bounds that still count, and the results that change."""

from __future__ import annotations

from collections.abc import Iterator

from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ir.def_use import DefUse
from openhtp.ir.graph import QnnNode
from openhtp.ops import Node, find_op, op_of
from openhtp.ops.relu import CLAMPS, clamp_bounds, is_always_folded, is_relu
from openhtp.program.qnn_program import QnnProgram

Bounds = tuple[float, float]


def may_fuse(between: TensorSpec, result: TensorSpec) -> bool:
    """Whether no other node reads the tensor between a node and its clamp, and the type stays."""
    return between.kind is TensorKind.NATIVE and between.dtype == result.dtype


def folded_range(producer: str, clamp: Node, bounds: Bounds, result: TensorSpec) -> Bounds | None:
    """The range of the results of a convolution with a folded clamp. None if the clamp is not always folded.

    The convolution then writes in the clamp's encoding, and its own is gone. A Relu still cuts off at 0. A
    ReluMinMax only keeps the ends of that encoding: its bounds do not count, unless both lie inside and the type
    has 8 bits. The vendor's x86 library computes like this. Clients whose encodings are wider than the bounds turn
    folding off.
    """
    if producer == "MatMul" or find_op(producer).weights is None or not is_always_folded(clamp):
        return None
    if not isinstance(result.quant, ScaleOffset) or not result.dtype.is_fixed_point:
        return None
    if is_relu(clamp):
        return bounds
    low, high = _range(result, result.quant)
    inside = low < bounds[0] and bounds[1] < high
    return None if inside and result.dtype.bits == 8 else (low, high)


def lossy_folds(program: QnnProgram) -> Iterator[tuple[QnnNode, QnnNode]]:
    """Convolutions and the clamps that are folded into them, where results change by more than a rounding.

    They do where the convolution's own encoding would have cut results off, and where the clamp's encoding reaches
    beyond its bounds.
    """
    if program.options.fold_relu_activation_into_conv_off:
        return
    uses = DefUse(program.nodes, program.output_names)
    for node in program.nodes:
        clamp = uses.only_reader(node.outputs[0]) if op_of(node).weights is not None else None
        if clamp is None or clamp.op not in CLAMPS:
            continue
        between, result = program.tensors[node.outputs[0]], program.tensors[clamp.outputs[0]]
        resolved = program.resolved(clamp)
        bounds = clamp_bounds(resolved)
        if bounds is None or not may_fuse(between, result):
            continue
        folded = folded_range(node.op, resolved, bounds, result)
        if folded is not None and not (holds(between, result, bounds) and _cuts(result, bounds, folded)):
            yield node, clamp


def holds(between: TensorSpec, result: TensorSpec, bounds: Bounds) -> bool:
    """Whether the range of ``between`` covers the clamped range of ``result``, up to half a step."""
    if not between.dtype.is_fixed_point:
        return True
    if not isinstance(between.quant, ScaleOffset) or not isinstance(result.quant, ScaleOffset):
        return False
    has_low, has_high = _range(between, between.quant)
    needs_low, needs_high = _range(result, result.quant)
    slack = 0.5 * result.quant.scale
    return has_low <= max(needs_low, bounds[0]) + slack and has_high >= min(needs_high, bounds[1]) - slack


def _cuts(result: TensorSpec, bounds: Bounds, folded: Bounds) -> bool:
    """Whether a folded clamp still cuts off at its bounds, up to half a step."""
    assert isinstance(result.quant, ScaleOffset)
    low, high = _range(result, result.quant)
    slack = 0.5 * result.quant.scale
    return max(low, folded[0]) >= bounds[0] - slack and min(high, folded[1]) <= bounds[1] + slack


def _range(spec: TensorSpec, quant: ScaleOffset) -> Bounds:
    low, high = spec.dtype.integer_range
    return quant.scale * (low + quant.offset), quant.scale * (high + quant.offset)
