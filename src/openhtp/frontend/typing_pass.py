"""Settles the type, the shape and, where it is constant, the value of everything in a model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from openhtp.core.errors import BadModel, QnnError, UnsupportedFeature, UnsupportedOp, error_context
from openhtp.frontend.expansion import expand
from openhtp.frontend.folding import can_fold, constant_of, fold
from openhtp.frontend.model import MICROSOFT, Array, OnnxModel, OnnxNode, ValueType, is_op
from openhtp.frontend.own_operators import is_own, own_types
from openhtp.frontend.schemas import infer_types

# Operators, by domain, without a rule for shapes in ONNX: their outputs have the type of their inputs.
_SAME_SHAPE = {MICROSOFT: ("Gelu", "QuickGelu"), "": ("GroupNormalization",)}
# Operators without such a rule before this opset, although nothing else changed with it.
_FIRST_INFERRED = {"GreaterOrEqual": 16, "LessOrEqual": 16}
_GENERAL_ADVICE = "Fix the inputs' sizes (dims=...), or make what it reads constant"
_ADVICE = {
    "NonMaxSuppression": "Make max_output_boxes_per_class a constant of at least 1: there is room for so many",
    "NonZero": "QNN's op of this name fills up with -1, which ONNX does not know: end the model before it, or use"
    " the op through the graph API",
}
# Operators whose results have other sizes on the HTP than elsewhere: there is room for all that could be selected.
_PADDED = frozenset(("NonMaxSuppression",))


@dataclass(frozen=True, slots=True)
class TypedModel:
    """A model with all types known, once it is settled. ``nodes`` are those that are left to be computed."""

    source: OnnxModel
    nodes: tuple[OnnxNode, ...]
    types: dict[str, ValueType]
    constants: dict[str, Array]


def settle_types(model: OnnxModel) -> TypedModel:
    """Walk the nodes in order. Raises UnsupportedFeature where a size depends on data."""
    constants = {name: ValueType(array.dtype, array.shape) for name, array in model.constants.items()}
    typed = TypedModel(model, (), {**model.inputs, **constants}, dict(model.constants))
    kept: list[OnnxNode] = []
    waiting = list(reversed(model.nodes))
    while waiting:
        node = waiting.pop()
        with error_context(node=node.name):
            simpler = _settle(node, typed, kept)
        waiting.extend(reversed(simpler))
    return dataclasses.replace(typed, nodes=tuple(kept))


def known_values(model: OnnxModel) -> dict[str, Array]:
    """The values that follow from constants and shapes, also in a model that cannot be settled as a whole."""
    constants = {name: ValueType(array.dtype, array.shape) for name, array in model.constants.items()}
    typed = TypedModel(model, (), {**model.inputs, **constants}, dict(model.constants))
    waiting = list(reversed(model.nodes))
    while waiting:
        node = waiting.pop()
        if node.op_type in _PADDED or not all(not name or name in typed.types for name in node.inputs):
            continue
        try:
            simpler = _settle(node, typed, [])
        except (QnnError, KeyError):  # it depends on data, is not supported, or has a branch that reads what does
            continue
        waiting.extend(reversed(simpler))
    return typed.constants


def _settle(node: OnnxNode, typed: TypedModel, kept: list[OnnxNode]) -> list[OnnxNode]:
    """Settle one node; returns those to be looked at instead of it."""
    results = _known_results(node, typed)
    if results is not None:
        typed.constants.update(results)
        typed.types.update((name, ValueType(result.dtype, result.shape)) for name, result in results.items())
        return []
    simpler = expand(node, typed.types, typed.constants)
    if simpler is not None:
        return simpler
    outputs = _output_types(node, typed)
    typed.types.update(outputs)
    if all(0 in kind.shape for kind in outputs.values()):
        # An empty tensor is known: it has no numbers.
        typed.constants.update((name, np.zeros(kind.shape, kind.dtype)) for name, kind in outputs.items())
    else:
        kept.append(node)
    return []


def _known_results(node: OnnxNode, typed: TypedModel) -> dict[str, Array] | None:
    """Values of the outputs, if all that they depend on is known."""
    constants, result = typed.constants, _constant_result(node, typed)
    if result is not None:
        return {node.outputs[0]: result}
    if not node.inputs or not all(not name or name in constants for name in node.inputs) or not can_fold(node):
        return None
    types = _output_types(node, typed)
    results = fold(node, [constants.get(name) for name in node.inputs], [types.get(name) for name in node.outputs])
    return None if results is None else dict(zip(node.outputs, results, strict=True))


def _named_type(node: OnnxNode) -> np.dtype[np.generic]:
    """What a QuantizeLinear without zero point gives: unsigned bytes, or the type that it names."""
    return np.dtype({3: np.int8, 4: np.uint16, 5: np.int16}.get(node.attr("output_dtype", 0), np.uint8))


def _constant_result(node: OnnxNode, typed: TypedModel) -> Array | None:
    """Results without computation: constants, and known shapes."""
    if node.domain or not node.outputs:
        return None
    if node.op_type == "Constant":
        return constant_of(node)
    if node.op_type == "Shape" and node.has(0):
        shape = typed.types[node.inputs[0]].shape
        return np.array(shape[node.attr("start", 0) : node.attr("end", len(shape))], np.int64)
    if node.op_type == "Size" and node.has(0):
        return np.array(np.prod(typed.types[node.inputs[0]].shape), np.int64)
    if node.op_type == "ConstantOfShape" and node.inputs[0] in typed.constants:
        filled = fold(node, [typed.constants[node.inputs[0]]], [None])
        return None if filled is None else filled[0]
    return None


def _output_types(node: OnnxNode, typed: TypedModel) -> dict[str, ValueType]:
    types = typed.types
    if is_own(node):
        return own_types(node, types, typed.source.declared)
    if node.op_type in ("QuantizeLinear", "DequantizeLinear") and not (node.has(0) and node.has(1)):
        raise BadModel(f"{node.title} has no scale")
    if is_op(node, "QuantizeLinear"):
        stored = types[node.inputs[2]].dtype if node.has(2) else _named_type(node)
        return {node.outputs[0]: ValueType(stored, types[node.inputs[0]].shape)}
    if is_op(node, "DequantizeLinear"):
        return {node.outputs[0]: ValueType(types[node.inputs[1]].dtype, types[node.inputs[0]].shape)}
    if node.op_type in _SAME_SHAPE.get(node.domain, ()) and node.has(0):
        return {node.outputs[0]: types[node.inputs[0]]}
    first = _FIRST_INFERRED.get(node.op_type, 0)
    outputs = infer_types(dataclasses.replace(node, opset=max(node.opset, first)), types, typed.constants)
    if outputs is None:
        outputs = _padded_selection(node, typed)
    if outputs is None and node.domain not in ("", MICROSOFT):
        # No sizes would help.
        raise UnsupportedOp(f"{node.title} is not supported; of {node.domain!r} the HTP has no operators")
    if outputs is None:
        raise UnsupportedFeature(
            f"{node.title}: the size of its output depends on data; the HTP takes fixed shapes only."
            f" {_ADVICE.get(node.op_type, _GENERAL_ADVICE)}"
        )
    for name, kind in outputs.items():
        if any(size < 0 for size in kind.shape):
            raise UnsupportedFeature(f"{node.title}: output {name!r} would have the shape {list(kind.shape)}")
    return outputs


def _padded_selection(node: OnnxNode, typed: TypedModel) -> dict[str, ValueType] | None:
    """A selection of boxes as the HTP gives it: with room for all that could be selected."""
    if node.op_type not in _PADDED or not node.has(2) or node.inputs[2] not in typed.constants:
        return None
    boxes, scores = (typed.types[name].shape for name in node.inputs[:2])
    most = typed.constants[node.inputs[2]]
    if len(boxes) != 3 or len(scores) != 3 or most.size != 1:
        raise BadModel(
            f"{node.title}: boxes {list(boxes)} and scores {list(scores)}; expected rank 3, and one limit"
        )
    rows = boxes[0] * scores[1] * min(int(most.item()), boxes[1])
    return {node.outputs[0]: ValueType(np.dtype(np.int64), (rows, 3))} if rows > 0 else None
