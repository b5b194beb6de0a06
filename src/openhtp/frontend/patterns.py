"""Recognises groups of ONNX nodes before nodes become QNN ops.

``fuse_patterns`` finds groups of nodes that are one op, ``merge_axes`` transpositions of more axes than QNN has,
and ``find_targets`` the float values of a QDQ model that are really fixed point.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.quant import Encoding
from openhtp.frontend import encodings
from openhtp.frontend.model import MICROSOFT, OnnxNode, ValueType, is_op
from openhtp.frontend.typing_pass import TypedModel
from openhtp.ir.def_use import DefUse


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
        """The only node that reads a value, if it is of these types and the value is no output of the model.

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


def fuse_patterns(model: TypedModel) -> TypedModel:
    """Replace each recognised group by one node, at the place of the group's last."""
    around = Neighbours(model)
    gone: set[int] = set()
    instead: dict[int, OnnxNode] = {}
    for node in model.nodes:
        group = find_gelu(node, around)
        if group is not None and not gone & {id(part) for part in group.nodes}:
            gone.update(id(part) for part in group.nodes)
            instead[id(group.nodes[-1])] = group.replacement
    nodes = [instead.get(id(node), node) for node in model.nodes if id(node) in instead or id(node) not in gone]
    return dataclasses.replace(model, nodes=tuple(nodes))


# An image is cut into windows by a Reshape to six axes, a Transpose, and a Reshape back. Axes that stay
# neighbours in the transposition are one axis for it, and with those merged five are enough.

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
    """Values between a Reshape and this one, if no other node reads them."""
    names = [name]
    while around.only_reader(names[-1]) is not None:
        node = around.maker(names[-1], *_SAME_ELEMENTS, *_SAME_PLACES)
        if node is None:
            return None
        if node.op_type in _SAME_ELEMENTS:
            return names
        names.append(node.inputs[0])
    return None


def _to_reshapes(name: str, around: Neighbours) -> list[str] | None:
    """Values between this one and the Reshape that reads it."""
    names = [name]
    while (node := around.only_reader(names[-1], *_SAME_ELEMENTS, *_SAME_PLACES)) is not None:
        if node.op_type in _SAME_ELEMENTS:
            return names
        names.append(node.outputs[0])
    return None


# A quantized model is a float model with QuantizeLinear and DequantizeLinear around its operators. The HTP
# computes ``DQ -> op -> Q`` as one op on integers, so the op stores its result in the encoding that the Q after it
# asks for.

_CLAMPS = ("Relu", "Clip")


@dataclass(frozen=True, slots=True)
class QuantizationTarget:
    """The type and encoding that a value is to be stored in, and the name it has after being quantized."""

    dtype: DType
    quant: Encoding
    quantized_name: str


def find_targets(model: TypedModel) -> dict[str, QuantizationTarget]:
    """Encodings of float values that only quantizers read, directly or after a clamp."""
    uses = DefUse(model.nodes, model.source.outputs)
    targets: dict[str, QuantizationTarget] = {}
    for node in reversed(model.nodes):
        for name in node.outputs:
            if name and not uses.is_output(name):
                target = _target(uses.readers(name), model, targets)
                if target is not None:
                    targets[name] = target
    return targets


def _target(
    readers: Sequence[OnnxNode], model: TypedModel, targets: Mapping[str, QuantizationTarget]
) -> QuantizationTarget | None:
    if not readers:
        return None
    first = readers[0]
    if all(is_op(node, "QuantizeLinear") for node in readers):
        # Readers with another encoding get a conversion from the first one's.
        fixed = encodings.read_encoding(first, model.types, model.constants)
        return QuantizationTarget(*encodings.activation(*fixed), first.outputs[0])
    if len(readers) == 1 and first.op_type in _CLAMPS and not first.domain:
        # clamp(round(x)) is round(clamp(x)) in one encoding, so the op before the clamp may use it as well.
        after = targets.get(first.outputs[0])
        return None if after is None else QuantizationTarget(after.dtype, after.quant, "")
    return None
