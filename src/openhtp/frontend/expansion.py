"""Replaces operators that have no QNN op by operators that have one.

``writing.py`` has the operators whose form affects speed or precision. All others follow ONNX's own definition by
simpler operators. An If whose condition is known becomes the branch that it takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from openhtp.core.errors import UnsupportedOp
from openhtp.frontend.model import Array, Branch, OnnxNode, ValueType
from openhtp.frontend.rules import plain_rules, rules
from openhtp.frontend.schemas import body_of
from openhtp.frontend.writing import WRITTEN, Writer

Types = Mapping[str, ValueType]

# ONNX's numbers of types.
_INT32, _BOOL = 6, 9


def expand(node: OnnxNode, types: Types, constants: Mapping[str, Array]) -> list[OnnxNode] | None:
    """Simpler nodes with the same outputs, or None for a node that stays as it is."""
    if node.domain:
        return None
    if node.op_type == "If":
        return _taken_branch(node, constants)
    if node.op_type in ("Concat", "Split"):
        nodes = _without_empty(node, types, constants)
        if nodes is not None:
            return nodes
    if node.op_type in _NO_TRUTH and _moves_truth(node, types):
        return _through_integers(node, types)
    if node.op_type in rules() or node.op_type in plain_rules():
        return None
    write = WRITTEN.get(node.op_type)
    if write is None:
        return body_of(node, types)
    writer = Writer(node, types, constants)
    write(writer)
    return writer.nodes


# Nothing


def _without_empty(node: OnnxNode, types: Types, constants: Mapping[str, Array]) -> list[OnnxNode] | None:
    """Concat and Split without the parts that have no elements: an HTP has no such tensors."""
    if node.op_type == "Concat":
        full = [name for name in node.inputs if name and 0 not in types[name].shape]
        if not full or len(full) == len(node.inputs):
            return None
        if len(full) > 1:
            return [dataclasses.replace(node, inputs=tuple(full))]
        return [dataclasses.replace(node, op_type="Identity", inputs=tuple(full), attrs={})]
    sizes = node.attr("split") or (constants[node.inputs[1]].tolist() if node.inputs[-1] in constants else [])
    if 0 not in sizes or not any(sizes) or len(sizes) != len(node.outputs):
        return None
    kind, axis = types[node.inputs[0]], node.attr("axis", 0)
    shape = list(kind.shape)
    shape[axis] = 0
    w = Writer(node, types)
    kept = [(name, size) for name, size in zip(node.outputs, sizes, strict=True) if size]
    for name, size in zip(node.outputs, sizes, strict=True):
        if not size:
            w.put("Constant", [], [name], {"value": np.zeros(shape, kind.dtype)})
    if len(kept) == 1:
        w.put("Identity", [node.inputs[0]], [kept[0][0]])
    else:
        lengths = w.constant(np.array([size for _, size in kept], np.int64))
        w.put("Split", [node.inputs[0], lengths], [name for name, _ in kept], {"axis": axis})
    return w.nodes


# Truth values

# Operators that move booleans in ONNX but not in QNN, and the inputs that they move.
_NO_TRUTH: dict[str, Sequence[int] | None] = {
    "Concat": None,
    "Expand": (0,),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Pad": (0, 2),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Split": (0,),
    "Tile": (0,),
    "Where": (1, 2),
}


def _moved(node: OnnxNode) -> Sequence[int]:
    indexes = _NO_TRUTH[node.op_type]
    return [index for index in (range(len(node.inputs)) if indexes is None else indexes) if node.has(index)]


def _moves_truth(node: OnnxNode, types: Types) -> bool:
    return any(types[node.inputs[index]].dtype == np.bool_ for index in _moved(node))


def _through_integers(node: OnnxNode, types: Types) -> list[OnnxNode]:
    """The node on integers, between casts."""
    inputs, nodes = list(node.inputs), []
    for index in _moved(node):
        inputs[index] = f"{node.outputs[0]}/integers_{index}"
        nodes.append(_cast(node, f"in_{index}", node.inputs[index], inputs[index], _INT32))
    numbers = [f"{name}/integers" if name else "" for name in node.outputs]
    nodes.append(dataclasses.replace(node, inputs=tuple(inputs), outputs=tuple(numbers)))
    nodes.extend(
        _cast(node, f"out_{index}", numbers[index], name, _BOOL) for index, name in enumerate(node.outputs) if name
    )
    return nodes


def _cast(node: OnnxNode, part: str, source: str, target: str, to: int) -> OnnxNode:
    return OnnxNode("Cast", "", f"{node.name}/{part}", (source,), (target,), {"to": to}, node.opset)


# Branches


def _taken_branch(node: OnnxNode, constants: Mapping[str, Array]) -> list[OnnxNode]:
    condition = constants.get(node.inputs[0]) if node.has(0) else None
    if condition is None or condition.size != 1:
        raise UnsupportedOp(
            f"{node.title}: its condition is computed, and an HTP has no branches; compute both sides and choose"
            " with Where, or export the model with the side that is meant"
        )
    branch = node.attr("then_branch" if condition.reshape(-1)[0] else "else_branch")
    if not isinstance(branch, Branch) or len(branch.outputs) != len(node.outputs):
        raise UnsupportedOp(f"{node.title}: its branch does not give {len(node.outputs)} values")
    outputs = [name for inner in branch.nodes for name in inner.outputs if name]
    names = {name: f"{node.outputs[0]}/{name}" for name in (*branch.constants, *outputs)}
    nodes = [
        OnnxNode("Constant", "", f"{node.name}/{name}", (), (names[name],), {"value": data}, node.opset)
        for name, data in branch.constants.items()
    ]
    nodes.extend(_renamed(inner, names, f"{node.name}/") for inner in branch.nodes)
    for index, (outer, inner_name) in enumerate(zip(node.outputs, branch.outputs, strict=True)):
        source = names.get(inner_name, inner_name)
        nodes.append(OnnxNode("Identity", "", f"{node.name}/out_{index}", (source,), (outer,), {}, node.opset))
    return nodes


def _renamed(node: OnnxNode, names: Mapping[str, str], prefix: str) -> OnnxNode:
    attrs: dict[str, Any] = {}
    for key, value in node.attrs.items():
        attrs[key] = _renamed_branch(value, names) if isinstance(value, Branch) else value
    return dataclasses.replace(
        node,
        name=prefix + node.name,
        inputs=tuple(names.get(name, name) for name in node.inputs),
        outputs=tuple(names.get(name, name) for name in node.outputs),
        attrs=attrs,
    )


def _renamed_branch(branch: Branch, names: Mapping[str, str]) -> Branch:
    """The branch with new names for the values that it takes from the surrounding graph. Its own names stay."""
    own = {*branch.constants, *(name for node in branch.nodes for name in node.outputs)}
    outer = {name: new for name, new in names.items() if name not in own}
    nodes = tuple(_renamed(node, outer, "") for node in branch.nodes)
    return Branch(nodes, tuple(outer.get(name, name) for name in branch.outputs), branch.constants)
