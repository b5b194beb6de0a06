"""Transpositions of more axes than QNN has.

Cutting an image into windows is a Reshape to six axes, a Transpose, and a Reshape back. Axes that stay neighbours
in the transposition are one axis for it, and with those merged five are enough.
"""

from __future__ import annotations

import dataclasses
import math

from openhtp.frontend.model import OnnxNode, ValueType
from openhtp.frontend.patterns import Neighbours
from openhtp.frontend.typing_pass import TypedModel

MOST_AXES = 5
_SAME_ELEMENTS = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
_SAME_PLACES = ("QuantizeLinear", "DequantizeLinear", "Identity")


def merge_axes(model: TypedModel) -> TypedModel:
    """The model with transpositions of at most five axes, where merging axes can do it."""
    around = Neighbours(model)
    types = dict(model.types)
    nodes = []
    for node in model.nodes:
        if node.op_type == "Transpose" and len(types[node.inputs[0]].shape) > MOST_AXES:
            node = _merged(node, around, types)
        nodes.append(node)
    return dataclasses.replace(model, nodes=tuple(nodes), types=types)


def _merged(node: OnnxNode, around: Neighbours, types: dict[str, ValueType]) -> OnnxNode:
    shape = types[node.inputs[0]].shape
    perm = node.attr("perm") or list(reversed(range(len(shape))))
    groups = _groups(perm)
    before, after = _from_reshape(node.inputs[0], around), _to_reshapes(node.outputs[0], around)
    if len(groups) > MOST_AXES or before is None or after is None:
        return node
    in_order = sorted(groups)
    narrow = tuple(math.prod(shape[axis] for axis in group) for group in in_order)
    turned = [in_order.index(group) for group in groups]
    for name in before:
        types[name] = dataclasses.replace(types[name], shape=narrow)
    for name in after:
        types[name] = dataclasses.replace(types[name], shape=tuple(narrow[axis] for axis in turned))
    return dataclasses.replace(node, attrs={"perm": turned})


def _groups(perm: list[int]) -> list[list[int]]:
    """Axes in their new order, those that were neighbours and still are put together."""
    groups = [[perm[0]]]
    for axis in perm[1:]:
        if axis == groups[-1][-1] + 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def _from_reshape(name: str, around: Neighbours) -> list[str] | None:
    """Values between a Reshape and this one, if nobody else reads them."""
    found = [name]
    while True:
        if around.only_reader(name) is None:
            return None
        node = around.maker(name, *_SAME_ELEMENTS, *_SAME_PLACES)
        if node is None:
            return None
        if node.op_type in _SAME_ELEMENTS:
            return found
        name = node.inputs[0]
        found.append(name)


def _to_reshapes(name: str, around: Neighbours) -> list[str] | None:
    """Values between this one and the Reshape that reads it."""
    found = [name]
    while True:
        node = around.only_reader(name, *_SAME_ELEMENTS, *_SAME_PLACES)
        if node is None:
            return None
        if node.op_type in _SAME_ELEMENTS:
            return found
        name = node.outputs[0]
        found.append(name)
