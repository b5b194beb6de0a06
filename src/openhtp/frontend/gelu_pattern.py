"""GELU as exporters write it out before opset 20: ``x * (erf(x / sqrt(2)) + 1) / 2``, factors in any order."""

from __future__ import annotations

import math

from openhtp.frontend.matching import Neighbours, PatternMatch
from openhtp.frontend.model import MICROSOFT, OnnxNode

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
