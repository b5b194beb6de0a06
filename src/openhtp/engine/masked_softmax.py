"""Attention masks: ``Softmax(Select(keep, x, ReduceMin(x) + B))`` in fixed point is computed as one op.

The HTP recognises this when B is -20 or less, so that what is masked out cannot matter. Between Select and Softmax
a graph needs an encoding that reaches down to B and has little left for x; the op in one piece (``SelectSoftmax``)
reads x with its own encoding, and what is masked out is exactly 0.

Found here and not when a graph is compiled: programs stay in ops of QNN's list, which the vendor's library takes,
too, and recognises for itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.program.program import Program, ProgramNode

HIGHEST_B = -20.0
# Of ElementWiseBinary's operations.
_ADD = 0
_MASKS = (DType.BOOL_8, DType.UFIXED_POINT_8)


@dataclass(frozen=True, slots=True)
class Recognised:
    """What is computed instead of some nodes, by their number, and the numbers of those that nobody reads then."""

    instead: Mapping[int, ProgramNode]
    unused: frozenset[int]


def recognise(program: Program) -> Recognised:
    """All masked softmaxes of a program."""
    makers = {spec.name: node for node in program.nodes for spec in node.call.outputs}
    instead = {}
    for number, node in enumerate(program.nodes):
        call = _as_one(node, makers, program)
        if call is not None:
            instead[number] = dataclasses.replace(node, call=call)
    return Recognised(instead, _unused(program, instead) if instead else frozenset())


def _as_one(node: ProgramNode, makers: Mapping[str, ProgramNode], program: Program) -> OpCall | None:
    call = node.call
    if call.op != "Softmax" or not call.outputs[0].dtype.is_fixed_point or call.outputs[0].dtype.signed:
        return None
    params, given = program.resolved(node).params, call.inputs[0]
    select = _maker(given, "ElementWiseSelect", makers)
    if given is None or select is None or params["axis"] != given.rank - 1 or params["beta"] != 1.0:
        return None
    keep, x, low = select.call.inputs
    if keep is None or x is None or keep.dtype not in _MASKS or not _is_below(low, x, makers, program):
        return None
    x = _before_conversion(x, makers)
    if x.dtype != call.outputs[0].dtype or x.shape != given.shape:
        return None
    return OpCall("SelectSoftmax", call.name, (x, keep), call.outputs)


def _maker(spec: TensorSpec | None, op: str, makers: Mapping[str, ProgramNode]) -> ProgramNode | None:
    """The node that makes a tensor, if it is of this op and nothing is fused into it."""
    found = None if spec is None else makers.get(_before_conversion(spec, makers).name)
    return found if found is not None and found.call.op == op and found.clamp is None else None


def _before_conversion(spec: TensorSpec, makers: Mapping[str, ProgramNode]) -> TensorSpec:
    """The tensor that this one is, before it was given another encoding."""
    maker = makers.get(spec.name)
    while maker is not None and maker.call.op == "Convert" and maker.clamp is None:
        source = maker.call.inputs[0]
        if source is None or not source.dtype.is_fixed_point:
            break
        spec, maker = source, makers.get(source.name)
    return spec


def _is_below(low: TensorSpec | None, x: TensorSpec, makers: Mapping[str, ProgramNode], program: Program) -> bool:
    """Whether a tensor is the least of each row of x, plus a constant that is low enough."""
    add = _maker(low, "ElementWiseAdd", makers) or _maker(low, "ElementWiseBinary", makers)
    if add is None or program.resolved(add).params.get("operation", _ADD) != _ADD:
        return False
    root = _before_conversion(x, makers)
    for least, other in (add.call.inputs[:2], add.call.inputs[1::-1]):
        reduce = _maker(least, "ReduceMin", makers)
        if least is None or reduce is None or other is None or other.kind is not TensorKind.STATIC:
            continue
        source, axes = reduce.call.inputs[0], program.resolved(reduce).ints("axes")
        over_rows = x.rank - 1 in axes and least.rank == x.rank
        if source is not None and _before_conversion(source, makers).name == root.name and over_rows:
            return _highest(other, program) <= HIGHEST_B
    return False


def _highest(spec: TensorSpec, program: Program) -> float:
    stored = program.statics[spec.name]
    return float(np.max(stored if spec.quant is None else spec.quant.dequantize(stored)))


def _unused(program: Program, instead: Mapping[int, ProgramNode]) -> frozenset[int]:
    wanted = {spec.name for spec in program.outputs}
    found = set()
    for number in reversed(range(len(program.nodes))):
        call = instead.get(number, program.nodes[number]).call
        if any(spec.name in wanted for spec in call.outputs):
            wanted |= {spec.name for spec in call.inputs if spec is not None}
        else:
            found.add(number)
    return frozenset(found)
