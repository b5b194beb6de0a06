"""Attention masks: ``Softmax(Where(mask, x, ReduceMin(x) + B))`` in a quantized model.

The three forms that the HTP recognises differ in the mask:

* A: 16 bit, through Equal to 0 - entries with 0 are kept
* B: 16 bit, through NotEqual to 0 (in ONNX: Not of Equal) - entries with 0 are masked out
* C: 8 bit (or boolean), as it is - entries with 0 are masked out

B must be -20 or less, so that what is masked out cannot matter.
"""

from __future__ import annotations

from openhtp.frontend.matching import Group, Neighbours
from openhtp.frontend.model import OWN, OnnxNode

HIGHEST_B = -20.0
_PAIR = ("QuantizeLinear", "DequantizeLinear")


def find_masked_softmax(node: OnnxNode, around: Neighbours) -> Group | None:
    """The replacement for a Softmax that ends this pattern; what it leaves unused is dropped with dead nodes."""
    if node.op_type != "Softmax" or node.domain or not _is_quantized(node, around):
        return None
    rank = len(around.model.types[node.inputs[0]].shape)
    default = -1 if node.opset >= 13 else 1
    where = around.maker(around.through(node.inputs[0], *_PAIR), "Where")
    if where is None or node.attr("axis", default) not in (-1, rank - 1):
        return None
    x = around.through(where.inputs[1], *_PAIR)
    if not _is_lowered(where.inputs[2], x, around):
        return None
    mask, keep_zero = _mask(where.inputs[0], around)
    attrs = {"keep_zero": keep_zero}
    made = OnnxNode("MaskedSoftmax", OWN, node.name, (where.inputs[1], mask), node.outputs, attrs, 1)
    return Group((node,), made)


def _is_quantized(node: OnnxNode, around: Neighbours) -> bool:
    return (
        around.maker(node.inputs[0], "DequantizeLinear") is not None
        and around.only_reader(node.outputs[0], "QuantizeLinear") is not None
    )


def _is_lowered(name: str, x: str, around: Neighbours) -> bool:
    """Whether a value is the minimum of x plus a constant that is low enough."""
    add = around.maker(around.through(name, *_PAIR), "Add")
    if add is None:
        return False
    for index in (0, 1):
        lowest = around.maker(around.through(add.inputs[index], *_PAIR), "ReduceMin")
        if lowest is not None and around.through(lowest.inputs[0], *_PAIR) == x:
            number = around.dequantized_number(add.inputs[1 - index])
            return number is not None and number <= HIGHEST_B
    return False


def _mask(name: str, around: Neighbours) -> tuple[str, bool]:
    """The mask itself, and whether its zeros are what is kept."""
    inverted = False
    negation = around.maker(name, "Not")
    if negation is not None:
        inverted, name = True, negation.inputs[0]
    equal = around.maker(name, "Equal")
    if equal is not None:
        for index in (0, 1):
            if around.dequantized_number(equal.inputs[index]) == 0.0:
                return equal.inputs[1 - index], not inverted
    cast = around.maker(name, "Cast")
    return (cast.inputs[0] if cast is not None else name), inverted
