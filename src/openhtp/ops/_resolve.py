"""Turns an OpCall into a checked Node, or says which rule it breaks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from openhtp.core import status as st
from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument, UnsupportedOp
from openhtp.core.opcall import OpCall
from openhtp.ops._node import Array, Node
from openhtp.ops._opdef import OpDef, Param, Port, type_word
from openhtp.ops._shapes import refuse

_INVALID = st.QNN_OP_PACKAGE_ERROR_VALIDATION_FAILURE


def resolve_call(opdef: OpDef, call: OpCall, statics: Mapping[str, Array], *, late: bool = True) -> Node:
    """Check ports, parameters, types, shapes and constraints, in this order; return the node."""
    name = call.op if opdef.own is None else opdef.own.title
    bare = Node(name, call.name, call.inputs, call.outputs, {}, statics, call.package)
    _check_ports(bare, opdef.inputs, call.inputs, "input")
    _check_ports(bare, opdef.outputs, call.outputs, "output")
    node = dataclasses.replace(bare, params=filled_params(opdef, bare, call))
    _check_types(opdef, node)
    _check_ranks(opdef, node)
    _check_shapes(opdef, node)
    for constraint in opdef.constraints:
        if (late or not constraint.late) and not constraint.check(node):
            raise UnsupportedOp(f"{node.op} {node.name!r}: {constraint.sentence}", _INVALID)
    return node


def _check_ports(node: Node, ports: tuple[Port, ...], specs: tuple[Any, ...], side: str) -> None:
    needed = sum(not port.optional for port in ports)
    variadic = bool(ports) and ports[-1].variadic
    if len(specs) < needed or (len(specs) > len(ports) and not variadic):
        most = "or more" if variadic else f"to {len(ports)}" if len(ports) > needed else ""
        refuse(node, f"{len(specs)} {side}s given; expected {needed} {most}".rstrip())
    for index, spec in enumerate(specs):
        port = ports[min(index, len(ports) - 1)]
        if spec is None and not port.optional:
            refuse(node, f"{side} {index} ({port.name}) is left out but is mandatory")


def filled_params(opdef: OpDef, node: Node, call: OpCall) -> dict[str, Any]:
    """The call's parameters, checked, with defaults where none is given."""
    if opdef.any_params:
        return {name: value for name, value in call.params.items() if value is not None}
    for name in call.params:
        if opdef.param(name) is None:
            known = ", ".join(param.name for param in opdef.params) or "no parameters"
            refuse(node, f"unknown parameter {name!r}; expected {known}")
    filled: dict[str, Any] = {}
    for param in opdef.params:
        if call.params.get(param.name) is not None:
            filled[param.name] = _read_param(node, param, call.params[param.name])
        elif param.mandatory:
            refuse(node, f"parameter {param.name!r} is missing")
        else:
            default = param.default(node) if callable(param.default) else param.default
            filled[param.name] = None if default is None else _read_param(node, param, default)
    return filled


def _read_param(node: Node, param: Param, value: Any) -> Any:
    if isinstance(value, str):
        value = _choice(node, param, value)
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and not param.dtype.is_float):
            raise TypeError(f"{array.dtype} does not fit")
        if param.rank:
            low, high = _range(param.dtype)
            if array.size and (array.min() < low or array.max() > high):
                raise ValueError("out of range")
            array = array.astype(param.dtype.numpy)
    except (TypeError, ValueError) as error:
        refuse(node, f"parameter {param.name!r} is {value!r}; expected {param.dtype.short} ({error})")
    if array.ndim != param.rank:
        wanted = f"a tensor of rank {param.rank}" if param.rank else "a scalar"
        refuse(node, f"parameter {param.name!r} has shape {list(array.shape)}; expected {wanted}")
    if param.rank:
        return array
    number = array.item()
    if param.choices and number not in param.choices.values():
        _choice(node, param, str(number))
    if param.dtype is DType.BOOL_8 or (param.stored_or_real and isinstance(number, int)):
        return bool(number) if param.dtype is DType.BOOL_8 else int(number)
    return float(number) if param.dtype.is_float else _integer(node, param, number)


def _range(dtype: DType) -> tuple[float, float]:
    if dtype.is_float or dtype is DType.BOOL_8:
        return (-np.inf, np.inf)
    return dtype.integer_range


def _integer(node: Node, param: Param, number: Any) -> int:
    low, high = param.dtype.integer_range
    if not low <= int(number) <= high:
        refuse(node, f"parameter {param.name!r} is {number}; expected {low}..{high}")
    return int(number)


def _choice(node: Node, param: Param, word: str) -> int:
    if word in param.choices:
        return param.choices[word]
    known = ", ".join(f"{name} ({number})" for name, number in param.choices.items()) or param.dtype.short
    return refuse(node, f"parameter {param.name!r} is {word!r}; expected {known}")


def _check_types(opdef: OpDef, node: Node) -> None:
    inputs = [None if spec is None else spec.dtype for spec in node.inputs]
    outputs = [spec.dtype for spec in node.outputs]
    if any(row.accepts(inputs, outputs) for row in opdef.types):
        return
    types = f"{' '.join(map(type_word, inputs))} > {' '.join(map(type_word, outputs))}"
    accepted = "; ".join(row.text for row in opdef.types)
    raise UnsupportedOp(f"{node.op} {node.name!r}: types {types} are not accepted; expected {accepted}", _INVALID)


def _check_ranks(opdef: OpDef, node: Node) -> None:
    for side, specs in (("input", node.inputs), ("output", node.outputs)):
        for index, spec in enumerate(specs):
            if spec is not None and spec.rank > opdef.max_rank:
                raise UnsupportedOp(
                    f"{node.op} {node.name!r}: {side} {index} {spec.name!r} has rank {spec.rank};"
                    f" expected at most {opdef.max_rank}",
                    _INVALID,
                )


def _check_shapes(opdef: OpDef, node: Node) -> None:
    for index, (spec, shape) in enumerate(zip(node.outputs, opdef.infer(node), strict=True)):
        if spec.shape != shape and not is_single(spec.shape, shape):
            try:
                raise InvalidArgument(
                    f"{node.op} {node.name!r}: output {index} {spec.name!r} has shape {list(spec.shape)};"
                    f" expected {list(shape)}",
                    _INVALID,
                )
            except InvalidArgument as error:
                _mention_inputs(error, node)
                raise


def is_single(*shapes: tuple[int, ...]) -> bool:
    """Whether each shape is () or (1,): clients use either for a tensor of one element."""
    return all(shape in ((), (1,)) for shape in shapes)


def _mention_inputs(error: InvalidArgument, node: Node) -> None:
    inputs = ", ".join(str(spec) for spec in node.inputs if spec is not None)
    error.context.append(f"inputs {inputs}")


LOWEST = 68
# The first to multiply 16-bit activations with 16-bit weights, as the vendor's validator says of each chip.
WIDE_PRODUCTS = 73


def first_arch(opdef: OpDef, node: Node) -> int:
    """The first architecture that can do this op on these types."""
    return WIDE_PRODUCTS if is_wide_product(opdef, node) else LOWEST


def is_wide_product(opdef: OpDef, node: Node) -> bool:
    """Whether 16-bit activations are multiplied with 16-bit weights."""
    if opdef.own is not None:
        return False
    factors = [spec.dtype for spec in node.inputs[:2] if spec is not None]
    is_wide = len(factors) == 2 and all(dtype.is_fixed_point and dtype.bits == 16 for dtype in factors)
    return is_wide and bool(opdef.work(node).macs)
