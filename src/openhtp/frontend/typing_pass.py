"""Settles the type, the shape and, where it is constant, the value of everything in a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from openhtp.core.errors import BadModel, UnsupportedFeature
from openhtp.frontend.folding import constant_of, fold
from openhtp.frontend.model import MICROSOFT, Array, OnnxModel, OnnxNode, ValueType, is_op
from openhtp.frontend.onnx_reader import infer_types

# com.microsoft operators and what ONNX's own rules know under another name.
_SAME_SHAPE = ("Gelu", "QuickGelu")
_GENERAL_ADVICE = "Fix the inputs' sizes (dims=...), or make what it reads constant"
_ADVICE = {
    "NonMaxSuppression": "Make max_output_boxes_per_class a constant of at least 1: there is room for so many",
    "NonZero": "QNN's op of this name fills up with -1, which ONNX does not know: end the model before it, or use"
    " the op through the graph API",
}


@dataclass(frozen=True, slots=True)
class TypedModel:
    """A model with all types known. ``nodes`` are those that are left to be computed."""

    source: OnnxModel
    nodes: tuple[OnnxNode, ...]
    types: dict[str, ValueType]
    constants: dict[str, Array]


def settle_types(model: OnnxModel) -> TypedModel:
    """Walk the nodes in order. Raises UnsupportedFeature where a size depends on data."""
    types: dict[str, ValueType] = dict(model.inputs)
    constants: dict[str, Array] = dict(model.constants)
    types.update((name, ValueType(array.dtype, array.shape)) for name, array in constants.items())
    kept = []
    for node in model.nodes:
        result = _constant_result(node, types, constants)
        if result is None:
            types.update(_output_types(node, types, constants))
            if all(not name or name in constants for name in node.inputs) and node.inputs:
                arrays = [constants.get(name) for name in node.inputs]
                result = fold(node, arrays, [types.get(name) for name in node.outputs])
        if result is None:
            kept.append(node)
        else:
            name = node.outputs[0]
            constants[name] = result
            types[name] = ValueType(result.dtype, result.shape)
    return TypedModel(model, tuple(kept), types, constants)


def _named_type(node: OnnxNode) -> np.dtype[np.generic]:
    """What a QuantizeLinear without zero point gives: unsigned bytes, or the type that it names."""
    return np.dtype({3: np.int8, 4: np.uint16, 5: np.int16}.get(node.attr("output_dtype", 0), np.uint8))


def _constant_result(node: OnnxNode, types: dict[str, ValueType], constants: dict[str, Array]) -> Array | None:
    """Results that need no computing: constants, and shapes of things whose shape is known."""
    if node.domain or not node.outputs:
        return None
    if node.op_type == "Constant":
        return constant_of(node)
    if node.op_type == "Shape" and node.has(0):
        shape = types[node.inputs[0]].shape
        return np.array(shape[node.attr("start", 0) : node.attr("end", len(shape))], np.int64)
    if node.op_type == "Size" and node.has(0):
        return np.array(np.prod(types[node.inputs[0]].shape), np.int64)
    if node.op_type == "ConstantOfShape" and node.inputs[0] in constants:
        return fold(node, [constants[node.inputs[0]]], [None])
    return None


def _output_types(
    node: OnnxNode, types: dict[str, ValueType], constants: dict[str, Array]
) -> dict[str, ValueType]:
    if node.op_type in ("QuantizeLinear", "DequantizeLinear") and not (node.has(0) and node.has(1)):
        raise BadModel(f"{node.title} has no scale")
    if is_op(node, "QuantizeLinear"):
        stored = types[node.inputs[2]].dtype if node.has(2) else _named_type(node)
        return {node.outputs[0]: ValueType(stored, types[node.inputs[0]].shape)}
    if is_op(node, "DequantizeLinear"):
        return {node.outputs[0]: ValueType(types[node.inputs[1]].dtype, types[node.inputs[0]].shape)}
    if node.domain == MICROSOFT and node.op_type in _SAME_SHAPE and node.has(0):
        return {node.outputs[0]: types[node.inputs[0]]}
    found = infer_types(node, types, constants)
    if found is None:
        found = _padded_selection(node, types, constants)
    if found is None:
        raise UnsupportedFeature(
            f"{node.title}: the size of its output depends on data; the HTP takes fixed shapes only."
            f" {_ADVICE.get(node.op_type, _GENERAL_ADVICE)}"
        )
    for name, kind in found.items():
        if any(size < 0 for size in kind.shape):
            raise BadModel(f"{node.title}: output {name!r} has the shape {list(kind.shape)}")
    return found


def _padded_selection(
    node: OnnxNode, types: dict[str, ValueType], constants: dict[str, Array]
) -> dict[str, ValueType] | None:
    """A selection of boxes as the HTP gives it: with room for all that could be selected."""
    if node.op_type != "NonMaxSuppression" or not node.has(2) or node.inputs[2] not in constants:
        return None
    boxes, scores, most = types[node.inputs[0]].shape, types[node.inputs[1]].shape, constants[node.inputs[2]]
    if len(boxes) != 3 or len(scores) != 3 or most.size != 1:
        raise BadModel(
            f"{node.title}: boxes {list(boxes)} and scores {list(scores)}; expected rank 3, and one limit"
        )
    rows = boxes[0] * scores[1] * min(int(most.item()), boxes[1])
    return {node.outputs[0]: ValueType(np.dtype(np.int64), (rows, 3))} if rows > 0 else None
