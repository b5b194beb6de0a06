"""Compute nodes at compile time that depend on constants only, if their results are small."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.compiler.kernels import join_chains
from openhtp.core.precision import FloatPrecision
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ir.def_use import needed_nodes
from openhtp.ir.graph import QnnNode
from openhtp.ops import Node, op_of
from openhtp.program.htp_program import HtpProgram, Kernel
from openhtp.program.qnn_program import QnnProgram

_MAX_RESULT_BYTES = 1 << 20
_MAX_VECTOR_OPS = 1 << 24

Array = npt.NDArray[Any]


def fold_constants(program: QnnProgram) -> QnnProgram:
    """Replace nodes on static inputs by their results. Outputs of the graph keep their nodes.

    Results are those that the node would have computed: floats are rounded to the graph's precision.
    """
    tensors, statics = dict(program.tensors), dict(program.statics)
    current = dataclasses.replace(program, tensors=tensors, statics=statics)
    updateable = {spec.name for spec in program.updateables}
    kept: list[QnnNode] = []
    for node in program.nodes:
        constant = all(name in statics and name not in updateable for name in node.inputs if name)
        resolved = current.resolved(node) if constant else None
        if resolved is None or not _is_foldable(resolved):
            kept.append(node)
            continue
        results = _compute(resolved, program.options.precision)
        for spec, data in zip(resolved.outputs, results, strict=True):
            tensors[spec.name] = dataclasses.replace(spec, kind=TensorKind.STATIC)
            statics[spec.name] = data
    return program if len(kept) == len(program.nodes) else dataclasses.replace(current, nodes=tuple(kept))


def _is_foldable(node: Node) -> bool:
    inputs = [spec for spec in node.inputs if spec is not None]
    opdef = op_of(node)
    work = opdef.work(node)
    return (
        not opdef.random
        # A bias without an encoding takes its scale from other inputs; the engine knows how.
        and all(spec.quant is not None for spec in inputs if spec.dtype.is_fixed_point)
        and all(spec.kind is TensorKind.NATIVE for spec in node.outputs)
        and sum(spec.nbytes for spec in node.outputs) <= _MAX_RESULT_BYTES
        and work.macs + work.vector_ops <= _MAX_VECTOR_OPS
    )


def _compute(node: Node, precision: FloatPrecision) -> list[Array]:
    inputs = [np.zeros(0) if spec is None else _real(spec, node.statics[spec.name]) for spec in node.inputs]
    results = op_of(node).reference(node, inputs)
    return [_stored(spec, result, precision) for spec, result in zip(node.outputs, results, strict=True)]


def _real(spec: TensorSpec, stored: Array) -> Array:
    if spec.quant is not None:
        return spec.quant.dequantize(stored)
    return stored.astype(np.float64) if spec.dtype.is_float or spec.dtype.is_fixed_point else stored


def _stored(spec: TensorSpec, real: Array, precision: FloatPrecision) -> Array:
    if spec.quant is not None:
        return spec.quant.quantize(real, *spec.dtype.integer_range).astype(spec.dtype.numpy)
    if spec.dtype.is_float and precision is FloatPrecision.FLOAT16:
        # Results of float ops are half precision then, whatever the tensor's type.
        return np.asarray(real).astype(np.float16).astype(spec.dtype.numpy)
    return np.asarray(real).astype(spec.dtype.numpy)


# Arithmetic with constants, one op after the other, is one pass over the data.


_CONSTANT_KINDS = ("affine", "divide", "image_norm")
"""Of two kinds that are joined, the later one in this list counts: it is the more expensive."""


def join_constants(program: HtpProgram) -> HtpProgram:
    """Join each chain of ops with constants; a conversion may begin a chain."""
    return join_chains(program, _grow)


def _grow(kernel: Kernel, reader: Kernel) -> Kernel | None:
    kinds = (kernel.kind, reader.kind)
    if not set(kinds) <= set(_CONSTANT_KINDS) or not op_of(reader.nodes[0]).affine_by_constant:
        return None
    # A division of two tensors is of the same kind, but it is no pass over one tensor.
    if len(reader.nodes) != 1 or kernel.outputs[0] not in reader.nodes[0].inputs or "divide" in kinds:
        return None
    return Kernel((*kernel.nodes, *reader.nodes), max(kinds, key=lambda kind: _CONSTANT_KINDS.index(str(kind))))


# Nodes and tensors that no output needs are dropped.


def drop_unused(program: QnnProgram) -> QnnProgram:
    """Keep the nodes that an output needs, the tensors of these nodes, and all tensors that the client sees."""
    nodes = needed_nodes(program.nodes, program.output_names)
    touched = {name for node in nodes for name in (*node.inputs, *node.outputs)}
    tensors = {
        name: spec
        for name, spec in program.tensors.items()
        if name in touched or spec.kind.is_input or spec.kind.is_output
    }
    if len(nodes) == len(program.nodes) and len(tensors) == len(program.tensors):
        return program
    statics = {name: data for name, data in program.statics.items() if name in tensors}
    return dataclasses.replace(program, tensors=tensors, statics=statics, nodes=tuple(nodes))
