"""ONNX's own definition of an operator: the types of its outputs, and the operators that it stands for."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx.checker
import onnx.defs
import onnx.shape_inference
from onnx import AttributeProto, FunctionProto, helper, numpy_helper

from openhtp.core.errors import UnsupportedOp
from openhtp.frontend.model import Array, OnnxNode, ValueType
from openhtp.frontend.onnx_reader import read_attribute, value_type

log = logging.getLogger(__name__)

_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
_MAX_INFERENCE_ELEMENTS = 4096
# Errors that onnx raises when a node contradicts itself; some come directly from its C++ code.
_INFERENCE_ERRORS = (
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
    ValueError,
    RuntimeError,
    TypeError,
    OverflowError,
)


def infer_types(
    node: OnnxNode, types: Mapping[str, ValueType], data: Mapping[str, Array]
) -> dict[str, ValueType] | None:
    """Types of a node's outputs by ONNX's own rules; None when they do not settle every size.

    ``data`` holds the constants among the inputs. Raises UnsupportedOp when ONNX knows no such operator, or says
    that the node contradicts its inputs.
    """
    try:
        schema = onnx.defs.get_schema(node.op_type, node.opset, node.domain)
    except (onnx.defs.SchemaError, TypeError):
        where = f"in opset {node.opset}"
        if node.domain:
            where = f"of its own, and no op package {node.domain!r} is registered (docs/op-packages.md)"
        raise UnsupportedOp(f"{node.title} is not supported; ONNX has no such operator {where}") from None
    try:
        inferred = _infer(schema, node, types, data)
    except _INFERENCE_ERRORS as error:
        raise _refused(node, error) from error
    settled = {name: _settled(kind.tensor_type, name) for name, kind in inferred.items() if name}
    if set(settled) != {name for name in node.outputs if name} or None in settled.values():
        return None
    return {name: kind for name, kind in settled.items() if kind is not None}


def _infer(schema: Any, node: OnnxNode, types: Mapping[str, ValueType], data: Mapping[str, Array]) -> Any:
    names = [name for name in dict.fromkeys(node.inputs) if name]
    kinds = {name: _type_proto(types[name]) for name in names}
    constants = {
        name: numpy_helper.from_array(np.asarray(data[name], order="C"), name)
        for name in names
        if name in data and data[name].size <= _MAX_INFERENCE_ELEMENTS
    }
    opsets = [helper.make_opsetid(node.domain, node.opset)]
    return onnx.shape_inference.infer_node_outputs(
        schema, _node_proto(node), kinds, constants, opset_imports=opsets
    )


def _attribute_proto(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, numpy_helper.from_array(np.asarray(value, order="C")))
    if isinstance(value, list) and not value:
        return helper.make_attribute(name, value, attr_type=AttributeProto.INTS)
    return helper.make_attribute(name, value)


def _settled(kind: Any, name: str) -> ValueType | None:
    if not kind.HasField("shape") or not all(dim.HasField("dim_value") for dim in kind.shape.dim):
        return None
    return ValueType(value_type(kind.elem_type, name), tuple(int(dim.dim_value) for dim in kind.shape.dim))


def body_of(node: OnnxNode, types: Mapping[str, ValueType]) -> list[OnnxNode] | None:
    """The nodes that ONNX defines an operator by, or None if it is one that stands for itself."""
    try:
        schema = onnx.defs.get_schema(node.op_type, node.opset, node.domain)
    except (onnx.defs.SchemaError, TypeError):
        return None
    function = _function(schema, node, types)
    if function is None or any(item.type in _GRAPHS for inner in function.node for item in inner.attribute):
        return None
    opset = next((item.version for item in function.opset_import if not item.domain), node.opset)
    names = dict(zip(function.input, node.inputs, strict=False))
    names.update((inner, "") for inner in function.input[len(node.inputs) :])
    names.update((inner, outer) for inner, outer in zip(function.output, node.outputs, strict=False) if outer)
    attrs = {name: attr.default_value for name, attr in schema.attributes.items() if attr.default_value.type}
    attrs.update((name, _attribute_proto(name, value)) for name, value in node.attrs.items())

    def outside(name: str) -> str:
        return names.setdefault(name, f"{node.outputs[0]}/{name}") if name else ""

    return [
        OnnxNode(
            inner.op_type,
            inner.domain,
            f"{node.name}/{inner.op_type}_{index}",
            tuple(outside(name) for name in inner.input),
            tuple(outside(name) for name in inner.output),
            _inner_attributes(inner, attrs),
            opset,
        )
        for index, inner in enumerate(function.node)
    ]


def _function(schema: Any, node: OnnxNode, types: Mapping[str, ValueType]) -> Any:
    if schema.has_function:
        return schema.function_body
    if not schema.has_context_dependent_function:
        return None
    kinds = [_type_proto(types[name]).SerializeToString() if name else b"" for name in node.inputs]
    try:
        data = schema.get_context_dependent_function(_node_proto(node).SerializeToString(), kinds)
        return FunctionProto.FromString(data) if data else None
    except _INFERENCE_ERRORS as error:
        raise _refused(node, error) from error


def _refused(node: OnnxNode, error: Exception) -> UnsupportedOp:
    """The error for a node that ONNX's rules refuse. It does not blame the file: some such nodes run elsewhere."""
    return UnsupportedOp(f"{node.title}: ONNX's rules find no shapes for it: {str(error).strip()}")


def _inner_attributes(inner: Any, outer: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a node in a body. Some refer to the operator's own attributes by another name."""
    attributes = {}
    for item in inner.attribute:
        if not item.ref_attr_name:
            attributes[item.name] = read_attribute(item)
        elif item.ref_attr_name in outer:
            attributes[item.name] = read_attribute(outer[item.ref_attr_name])
    return attributes


def _node_proto(node: OnnxNode) -> Any:
    proto = helper.make_node(node.op_type, node.inputs, node.outputs, node.name, domain=node.domain)
    proto.attribute.extend(_attribute_proto(name, value) for name, value in node.attrs.items())
    return proto


def _type_proto(kind: ValueType) -> Any:
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(kind.dtype), kind.shape)


def evaluate(node: OnnxNode, inputs: Sequence[Array | None]) -> list[Array] | None:
    """Results of a node by ONNX's own definition, which is slow; None where that cannot compute it."""
    # Half a second to import, and few models need it.
    from onnx.reference import ReferenceEvaluator

    inputs_given = [name for name in dict.fromkeys(node.inputs) if name]
    graph = helper.make_graph(
        [_node_proto(node)],
        "one",
        [helper.make_empty_tensor_value_info(name) for name in inputs_given],
        [helper.make_empty_tensor_value_info(name) for name in node.outputs if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, node.opset)])
    feeds = {name: array for name, array in zip(node.inputs, inputs, strict=True) if name}
    try:
        results = iter(ReferenceEvaluator(model).run(None, feeds))
        return [np.asarray(next(results)) if name else np.zeros(0) for name in node.outputs]
    except Exception as error:  # The reference implementation may raise anything.
        log.debug("%s is left to the graph: %s", node.title, error)
        return None


# Inputs that an ONNX model may compute, but that the HTP needs when a graph is compiled.
_REDUCED = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

STATIC_INPUTS: dict[str, tuple[int, ...]] = {
    **{f"Reduce{kind}": (1,) for kind in _REDUCED},
    "BatchNormalization": (1, 2, 3, 4),
    "Clip": (1, 2),
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "DequantizeLinear": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "GRU": (4,),
    "LSTM": (1, 2, 3, 4, 7),
    "NonMaxSuppression": (2, 3, 4),
    "Pad": (1, 2, 3),
    "QuantizeLinear": (1, 2),
    "RNN": (4,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
