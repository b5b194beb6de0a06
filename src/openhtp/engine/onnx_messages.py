"""ONNX's messages, and the few ways to make them that the engine needs, without the rest of the package ``onnx``.

Importing that package takes ten times as long as its messages do, and 9 MB more: it imports everything it has, and
``asyncio`` and TLS with it. A program that only runs graphs needs none of that. Both may be imported in one
process: protobuf has one class for one message.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

_NAME = "onnx.onnx_ml_pb2"


def _load_messages() -> ModuleType:
    package = None if _NAME in sys.modules else importlib.util.find_spec("onnx")
    path = None if package is None or package.origin is None else Path(package.origin).with_name("onnx_ml_pb2.py")
    if path is None or not path.is_file():
        return importlib.import_module(_NAME)
    # Not under its own name, so that an import of the package still gets all of it.
    spec = importlib.util.spec_from_file_location(f"{__name__}.onnx_ml_pb2", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from onnx import (
        AttributeProto,
        GraphProto,
        ModelProto,
        NodeProto,
        OperatorSetIdProto,
        TensorProto,
        ValueInfoProto,
    )
else:
    _messages = _load_messages()
    AttributeProto = _messages.AttributeProto
    GraphProto = _messages.GraphProto
    ModelProto = _messages.ModelProto
    NodeProto = _messages.NodeProto
    OperatorSetIdProto = _messages.OperatorSetIdProto
    TensorProto = _messages.TensorProto
    ValueInfoProto = _messages.ValueInfoProto

__all__ = [
    "AttributeProto",
    "GraphProto",
    "ModelProto",
    "NodeProto",
    "OperatorSetIdProto",
    "TensorProto",
    "ValueInfoProto",
    "attribute_value",
    "make_graph",
    "make_model",
    "make_node",
    "make_opset",
    "make_value_info",
]


def make_node(
    op_type: str, inputs: Sequence[str], outputs: Sequence[str], *, name: str = "", domain: str = "", **attrs: Any
) -> NodeProto:
    """A node; attributes that are None are left out."""
    node = NodeProto(op_type=op_type, input=inputs, output=outputs)
    if name:
        node.name = name
    if domain:
        node.domain = domain
    for key in sorted(attrs):
        if attrs[key] is not None:
            _fill(node.attribute.add(name=key), attrs[key])
    return node


def _fill(attribute: AttributeProto, value: Any) -> None:
    """Fill an attribute with whole numbers, numbers or texts: one, or a list."""
    several = not isinstance(value, str | bytes) and hasattr(value, "__iter__")
    values = list(value) if several else [value]
    if all(isinstance(one, str | bytes) for one in values) and values:
        kind, fields = AttributeProto.STRING, ("s", "strings")
        values = [one.encode() if isinstance(one, str) else one for one in values]
    elif all(_is_whole(one) for one in values):
        kind, fields = AttributeProto.INT, ("i", "ints")
        values = [int(one) for one in values]
    else:
        kind, fields = AttributeProto.FLOAT, ("f", "floats")
        values = [float(one) for one in values]
    if several:
        attribute.type = {
            AttributeProto.STRING: AttributeProto.STRINGS,
            AttributeProto.INT: AttributeProto.INTS,
            AttributeProto.FLOAT: AttributeProto.FLOATS,
        }[kind]
        getattr(attribute, fields[1]).extend(values)
    else:
        attribute.type = kind
        setattr(attribute, fields[0], values[0])


def _is_whole(value: Any) -> bool:
    return hasattr(value, "__index__")


def attribute_value(attribute: AttributeProto) -> Any:
    """What an attribute holds: a number, bytes, or a list of those."""
    field = {
        AttributeProto.FLOAT: "f",
        AttributeProto.INT: "i",
        AttributeProto.STRING: "s",
        AttributeProto.FLOATS: "floats",
        AttributeProto.INTS: "ints",
        AttributeProto.STRINGS: "strings",
    }[attribute.type]
    value = getattr(attribute, field)
    return list(value) if field.endswith("s") and field != "s" else value


def make_value_info(name: str, element_type: int, shape: Sequence[int | str]) -> ValueInfoProto:
    """A tensor's name, type and sizes; one that is free is a name."""
    info = ValueInfoProto(name=name)
    tensor = info.type.tensor_type
    tensor.elem_type = element_type
    tensor.shape.SetInParent()  # also where there are no sizes
    for size in shape:
        dimension = tensor.shape.dim.add()
        if isinstance(size, str):
            dimension.dim_param = size
        else:
            dimension.dim_value = size
    return info


def make_graph(
    nodes: Iterable[NodeProto],
    name: str,
    inputs: Iterable[ValueInfoProto],
    outputs: Iterable[ValueInfoProto],
    initializers: Iterable[TensorProto] = (),
    value_info: Iterable[ValueInfoProto] = (),
) -> GraphProto:
    """A graph of these parts, which are copied."""
    return GraphProto(
        name=name,
        node=nodes,
        input=inputs,
        output=outputs,
        initializer=initializers,
        value_info=value_info,
    )


def make_opset(domain: str, version: int) -> OperatorSetIdProto:
    """Which operators a model uses."""
    return OperatorSetIdProto(domain=domain, version=version)


def make_model(graph: GraphProto, opsets: Iterable[OperatorSetIdProto], ir_version: int) -> ModelProto:
    """A model of one graph."""
    return ModelProto(ir_version=ir_version, opset_import=opsets, graph=graph)
