"""Nodes of an ONNX model that are operators of a registered op package: the node's domain is the package's name.

The attributes of such a node are the op's parameters, and its axes are in ONNX's order. Its type is
``package::operator`` from the moment it is read, so no rule mistakes it for ONNX's own operator of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper, shape_inference

from openhtp.core.dtype import DType
from openhtp.core.errors import QnnError, UnsupportedOp
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorSpec
from openhtp.frontend import encodings
from openhtp.frontend.model import OnnxNode, ValueType
from openhtp.ops import OpDef, op_of
from openhtp.ops._node import Node
from openhtp.ops._packages import find_package
from openhtp.ops._resolve import filled_params

if TYPE_CHECKING:
    from openhtp.frontend.site import Site

_MARK = "::"


def type_of(domain: str, op_type: str) -> str:
    """The type under which a node is known here."""
    return f"{domain}{_MARK}{op_type}" if domain and find_package(domain) is not None else op_type


def is_own(node: OnnxNode) -> bool:
    """Whether the node is an operator of a registered package."""
    return isinstance(node.op_type, str) and _MARK in node.op_type  # in a damaged file it may be bytes


def own_types(
    node: OnnxNode, types: Mapping[str, ValueType], declared: Mapping[str, ValueType]
) -> dict[str, ValueType]:
    """Types of the outputs by the operator's own rule; if it has none, as the model declares them."""
    opdef = op_of(_call(node))
    own = opdef.own
    assert own is not None
    if own.operator.infer is None:
        unknown = [name for name in node.outputs if name not in declared]
        if unknown:
            raise UnsupportedOp(
                f"{node.title} has no rule for shapes, as operators of C packages have none, and the model"
                f" declares no type of {unknown[0]!r}; add it to the model's value_info"
            )
        return {name: declared[name] for name in node.outputs}
    if (own.operator.outputs or len(node.outputs)) != len(node.outputs) or not all(node.outputs):
        raise UnsupportedOp(
            f"{node.title} has {len(node.outputs)} outputs; expected {len(opdef.outputs)} with names"
        )
    inputs = tuple(_spec(name, types[name]) if name else None for name in node.inputs)
    outputs = tuple(TensorSpec(name, (1,), DType.FLOAT_32) for name in node.outputs)
    bare = Node(own.title, node.name, inputs, outputs, {}, package=own.package)
    resolved = Node(own.title, node.name, inputs, outputs, _params(opdef, bare, node), package=own.package)
    first = next((types[name].dtype for name in node.inputs if name), np.dtype(np.float32))
    declared_types = (*own.operator.onnx_types, *[None] * len(node.outputs))
    return {
        name: ValueType(first if kind is None else np.dtype(kind), shape)
        for name, kind, shape in zip(node.outputs, declared_types, opdef.infer(resolved), strict=False)
    }


def _spec(name: str, kind: ValueType) -> TensorSpec:
    return TensorSpec(name, kind.shape or (1,), encodings.plain_type(kind.dtype))


def _call(node: OnnxNode) -> OpCall:
    return OpCall(node.op_type, node.name, (), (), {}, node.domain)


def _params(opdef: OpDef, bare: Node, node: OnnxNode) -> dict[str, Any]:
    return filled_params(opdef, bare, OpCall(node.op_type, node.name, (), (), node.attrs, node.domain))


def apply_own(site: Site) -> None:
    """Emit the operator, with its tensors in ONNX's order of axes."""
    node = site.node
    inputs = [site.take(index) if node.has(index) else None for index in range(len(node.inputs))]
    outputs = [site.give(index) for index in range(len(node.outputs))]
    operator = node.op_type.partition(_MARK)[2]
    site.emit(operator, inputs, outputs, dict(node.attrs), package=node.domain)


def with_own_types(proto: Any) -> Any:
    """An ONNX model with the types that follow from its inputs, also behind operators of packages."""
    while True:
        proto = shape_inference.infer_shapes(proto, data_prop=True)
        graph = proto.graph
        known = {
            value.name: kind
            for value in (*graph.input, *graph.value_info, *graph.output)
            if (kind := _fixed_type(value)) is not None
        }
        known |= {
            tensor.name: ValueType(_numpy(tensor.data_type), tuple(tensor.dims)) for tensor in graph.initializer
        }
        fresh = {
            name: kind
            for node in graph.node
            if node.domain and find_package(node.domain) is not None
            if not set(node.output) <= set(known) and {name for name in node.input if name} <= set(known)
            for name, kind in _try_types(node, known).items()
        }
        if not fresh:
            return proto
        outputs = {value.name: value for value in graph.output}
        for name, kind in fresh.items():
            described = helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(kind.dtype), kind.shape
            )
            if name in outputs:
                outputs[name].CopyFrom(described)
            else:
                graph.value_info.append(described)


def _try_types(proto: Any, known: Mapping[str, ValueType]) -> dict[str, ValueType]:
    try:
        attrs = {item.name: helper.get_attribute_value(item) for item in proto.attribute}
        kind = type_of(proto.domain, proto.op_type)
        node = OnnxNode(kind, proto.domain, proto.name, tuple(proto.input), tuple(proto.output), attrs, 1)
        return {name: kind for name, kind in own_types(node, known, known).items() if name not in known}
    except (QnnError, ValueError, TypeError):  # the importer says what is wrong
        return {}


def _numpy(data_type: int) -> np.dtype[Any]:
    dtype: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(data_type)
    return dtype


def _fixed_type(value: Any) -> ValueType | None:
    kind = value.type.tensor_type
    if not kind.elem_type or not kind.HasField("shape") or not all(dim.dim_value > 0 for dim in kind.shape.dim):
        return None
    return ValueType(_numpy(kind.elem_type), tuple(dim.dim_value for dim in kind.shape.dim))
