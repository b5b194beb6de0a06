"""Compute at compile time what depends on constants only, when the result is small."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.compiler.draft import Draft
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ops import find_op
from openhtp.program.options import Precision
from openhtp.program.program import ProgramNode

_MAX_RESULT_BYTES = 1 << 20
_MAX_VECTOR_OPS = 1 << 24


def fold_constants(draft: Draft, precision: Precision) -> Draft:
    """Replace nodes on static inputs by their results. Outputs of the graph stay computed, so they have a node.

    Results are those that the node would have had: float ones are rounded to ``precision``.
    """
    tensors, statics = dict(draft.tensors), dict(draft.statics)
    kept: list[ProgramNode] = []
    for node in draft.nodes:
        node = _with_tensors(node, tensors)
        current = dataclasses.replace(draft, tensors=tensors, statics=statics)
        if not _is_foldable(node):
            kept.append(node)
            continue
        for spec, data in zip(node.call.outputs, _compute(current, node, precision), strict=True):
            tensors[spec.name] = dataclasses.replace(spec, kind=TensorKind.STATIC)
            statics[spec.name] = data
    return Draft(draft.name, tensors, statics, tuple(kept))


def _with_tensors(node: ProgramNode, tensors: dict[str, TensorSpec]) -> ProgramNode:
    inputs = tuple(None if spec is None else tensors[spec.name] for spec in node.call.inputs)
    if inputs == node.call.inputs:
        return node
    call = OpCall(node.call.op, node.call.name, inputs, node.call.outputs, node.call.params, node.call.package)
    return dataclasses.replace(node, call=call)


def _is_foldable(node: ProgramNode) -> bool:
    given = [spec for spec in node.call.inputs if spec is not None]
    return (
        all(spec.kind is TensorKind.STATIC for spec in given)
        # A bias without an encoding takes its scale from other inputs; the engine knows how.
        and all(spec.quant is not None for spec in given if spec.dtype.is_fixed_point)
        and all(spec.kind is TensorKind.NATIVE for spec in node.call.outputs)
        and sum(spec.nbytes for spec in node.call.outputs) <= _MAX_RESULT_BYTES
        and node.work.macs + node.work.vector_ops <= _MAX_VECTOR_OPS
    )


def _compute(draft: Draft, node: ProgramNode, precision: Precision) -> list[npt.NDArray[Any]]:
    resolved = draft.resolved(node)
    arrays = [_real(spec, draft.statics[spec.name]) for spec in resolved.inputs if spec is not None]
    placed = iter(arrays)
    given = [np.zeros(0) if spec is None else next(placed) for spec in resolved.inputs]
    results = find_op(resolved.op).reference(resolved, given)
    return [_stored(spec, result, precision) for spec, result in zip(resolved.outputs, results, strict=True)]


def _real(spec: TensorSpec, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if spec.quant is not None:
        return spec.quant.dequantize(stored)
    return stored.astype(np.float64) if spec.dtype.is_float or spec.dtype.is_fixed_point else stored


def _stored(spec: TensorSpec, real: npt.NDArray[Any], precision: Precision) -> npt.NDArray[Any]:
    if spec.quant is not None:
        return spec.quant.quantize(real, *spec.dtype.integer_range).astype(spec.dtype.numpy)
    if spec.dtype.is_float and precision is Precision.FLOAT16:
        # Results of float ops are half precision then, whatever the tensor's type.
        return np.asarray(real).astype(np.float16).astype(spec.dtype.numpy)
    return np.asarray(real).astype(spec.dtype.numpy)
