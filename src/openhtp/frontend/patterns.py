"""Recognises groups of ONNX nodes that are one QNN op.

Each pattern is a module with a function that looks at one node (the one that is rarest in other models) and
answers with the group around it, if it is one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from openhtp.frontend.model import MICROSOFT, OnnxNode
from openhtp.frontend.typing_pass import TypedModel
from openhtp.ir.def_use import DefUse

# Who makes and who reads a value: what patterns are found with.


@dataclass(frozen=True, slots=True)
class PatternMatch:
    """Nodes of a pattern, the last in running order at the end, and the node that takes their place."""

    nodes: tuple[OnnxNode, ...]
    replacement: OnnxNode


class Neighbours:
    """A model seen from any of its values."""

    def __init__(self, model: TypedModel) -> None:
        self.model = model
        self._uses = DefUse(model.nodes, model.source.outputs)

    def maker(self, name: str, *op_types: str) -> OnnxNode | None:
        """The node that makes a value, if it is of one of these types."""
        node = self._uses.maker(name)
        return node if node is not None and node.op_type in op_types else None

    def only_reader(self, name: str, *op_types: str) -> OnnxNode | None:
        """The one node that reads a value, if there is just one, it is of these types, and no client reads it.

        Without types, any will do.
        """
        reader = self._uses.only_reader(name)
        return reader if reader is not None and (not op_types or reader.op_type in op_types) else None

    def number(self, name: str) -> float | None:
        """The value of a constant that is one number."""
        array = self.model.constants.get(name)
        return float(np.asarray(array).reshape(-1)[0]) if array is not None and array.size == 1 else None

    def is_number(self, name: str, wanted: float) -> bool:
        """Whether a value is this constant, up to the precision of half floats."""
        number = self.number(name)
        return number is not None and abs(number - wanted) <= 1e-3 * abs(wanted)

    def other(self, node: OnnxNode, name: str) -> str | None:
        """The other input of a node with two, of which one is ``name``."""
        if len(node.inputs) != 2 or name not in node.inputs:
            return None
        return node.inputs[1] if node.inputs[0] == name else node.inputs[0]


# GELU as exporters write it out before opset 20: ``x * (erf(x / sqrt(2)) + 1) / 2``, factors in any order.


_ROOT = math.sqrt(2.0)
DOUBLED = "openhtp_doubled"
"""An attribute of our own: the node stands for twice the GELU."""


def find_gelu(node: OnnxNode, around: Neighbours) -> PatternMatch | None:
    """The group around an Erf, if it is a GELU."""
    if node.op_type != "Erf" or node.domain:
        return None
    scaling = around.maker(node.inputs[0], "Div", "Mul")
    plus = around.only_reader(node.outputs[0], "Add")
    if scaling is None or plus is None or around.only_reader(scaling.outputs[0], "Erf") is None:
        return None
    x = _scaled(scaling, around)
    one = around.other(plus, node.outputs[0])
    if x is None or one is None or not around.is_number(one, 1.0):
        return None
    products = _products(x, plus.outputs[0], around)
    if products is None:
        return _doubled(x, (scaling, node, plus), around)
    nodes = (scaling, node, plus, *products)
    name = products[-1].name
    return PatternMatch(nodes, OnnxNode("Gelu", MICROSOFT, name, (x,), products[-1].outputs, {}, 1))


def _doubled(x: str, nodes: tuple[OnnxNode, ...], around: Neighbours) -> PatternMatch | None:
    """``x * (erf(x / sqrt(2)) + 1)``: optimizers move the half into the weights of what follows."""
    grown = nodes[-1].outputs[0]
    product = around.only_reader(grown, "Mul")
    if product is None or around.other(product, grown) != x:
        return None
    return PatternMatch(
        (*nodes, product), OnnxNode("Gelu", MICROSOFT, product.name, (x,), product.outputs, {DOUBLED: 1}, 1)
    )


def _scaled(node: OnnxNode, around: Neighbours) -> str | None:
    """x, given the node that divides it by the root of 2."""
    if node.op_type == "Div":
        return node.inputs[0] if around.is_number(node.inputs[1], _ROOT) else None
    for name in node.inputs:
        other = around.other(node, name)
        if other is not None and around.is_number(other, 1.0 / _ROOT):
            return name
    return None


def _products(x: str, grown: str, around: Neighbours) -> tuple[OnnxNode, ...] | None:
    """The multiplications that make ``x * grown / 2``, in running order."""
    first = around.only_reader(grown, "Mul")
    if first is None:
        return None
    factor = around.other(first, grown)
    if factor is None:
        return None
    if factor == x or around.is_number(factor, 0.5):
        second = around.only_reader(first.outputs[0], "Mul")
        rest = None if second is None else around.other(second, first.outputs[0])
        if second is None or rest is None:
            return None
        done = around.is_number(rest, 0.5) if factor == x else rest == x
        return (first, second) if done else None
    halved = around.maker(factor, "Mul")
    if halved is None or around.only_reader(factor, "Mul") is None or x not in halved.inputs:
        return None
    half = around.other(halved, x)
    return (halved, first) if half is not None and around.is_number(half, 0.5) else None


Pattern = Callable[[OnnxNode, Neighbours], PatternMatch | None]


_PATTERNS: tuple[Pattern, ...] = (find_gelu,)


def fuse_patterns(model: TypedModel) -> TypedModel:
    """Replace each recognised group by one node, at the place of the group's last."""
    around = Neighbours(model)
    gone: set[int] = set()
    instead: dict[int, OnnxNode] = {}
    for node in model.nodes:
        for pattern in _PATTERNS:
            group = pattern(node, around)
            if group is not None and not gone & {id(part) for part in group.nodes}:
                gone.update(id(part) for part in group.nodes)
                instead[id(group.nodes[-1])] = group.replacement
    if not gone:
        return model
    return dataclasses.replace(model, nodes=tuple(_replaced(model.nodes, gone, instead)))


def _replaced(nodes: Sequence[OnnxNode], gone: set[int], instead: dict[int, OnnxNode]) -> list[OnnxNode]:
    found = []
    for node in nodes:
        if id(node) in instead:
            found.append(instead[id(node)])
        elif id(node) not in gone:
            found.append(node)
    return found
