"""Products of one row as single operators, in place of the dozen nodes that the runtime computes each of them by.

A language model writes token by token: all its products have one row. Then beginning a node takes longer than what
it computes. Where this package's C side has operators for such products (``native/sessions.c``), they take the
place of the nodes that ``wide.py`` made, after the runtime has optimised the model. Sums are the same integers,
and the steps in float behind them the same, so results are equal to the last bit. Where a result is quantized,
that is part of the operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from openhtp.engine.lowering import origin
from openhtp.engine.native import DOMAIN, native
from openhtp.engine.onnx_messages import (
    ModelProto,
    TensorProto,
    ValueInfoProto,
    attribute_value,
    make_node,
    make_opset,
    make_value_info,
)
from openhtp.engine.wide import RowProduct

# Larger ones are left to the runtime: reading them is what takes the time, and its kernels use several threads.
_MOST_WEIGHTS = 1 << 20
_RESULTS = {TensorProto.UINT16: "U16", TensorProto.UINT8: "U8"}
_RIGHTS = {True: "SignedProduct", False: "UnsignedProduct"}
# What lies between the products of bytes and the result.
_BETWEEN = {"Add", "Cast", "Mul"}
_SUMS = 2


def can_fuse() -> bool:
    """Whether sessions of this process have the operators."""
    side = native()
    return side is not None and side.has_products


def fuse_row_products(
    model: ModelProto, products: Mapping[str, RowProduct], left_alone: Collection[int]
) -> dict[str, ValueInfoProto]:
    """Put operators of ours in place of products, but those of steps that are ``left_alone``.

    Returns what the runtime cannot find out: types and sizes of their results.
    """
    if not products or not can_fuse():
        return {}
    fusing = _Fusing(model)
    for result, product in products.items():
        if origin(result) not in left_alone:
            fusing.fuse(result, product)
    return fusing.finish()


class _Fusing:
    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self._makers = {name: node for node in model.graph.node for name in node.output}
        self._inputs = {value.name for value in model.graph.input}
        self._outputs = {value.name for value in model.graph.output}
        self._count = Counter(name for node in model.graph.node for name in node.input)
        self._readers = {name: node for node in model.graph.node for name in node.input}
        # By the identity of the node whose place it takes.
        self._new: dict[int, Any] = {}
        self._told: dict[str, ValueInfoProto] = {}

    def fuse(self, result: str, product: RowProduct) -> None:
        """Make an operator of one product, unless the runtime has made something else of its nodes."""
        last = self._makers.get(result)
        known = product.stored in self._makers or product.stored in self._inputs
        if last is None or last.op_type != "Mul" or not known or result in self._outputs:
            return
        if product.rows * product.columns > _MOST_WEIGHTS:
            return
        scales = [name for name in last.input if name in self._initializers]
        sums = self._sums_behind(last)
        rights = {node.input[1] for node in sums}
        if len(scales) != 1 or len(sums) != _SUMS or len(rights) != 1:
            return
        name, inputs, element = _RIGHTS[product.is_signed], [product.stored, *rights, scales[0]], TensorProto.FLOAT
        rounded = self._rounding_of(result)
        if rounded is not None:
            last, result = rounded, rounded.output[0]
            inputs += rounded.input[1:3]
            element = self._initializers[rounded.input[2]].data_type
            name += _RESULTS[element]
        self._new[id(last)] = make_node(
            name,
            inputs,
            [result],
            name=last.name,
            domain=DOMAIN,
            zero=product.zero,
            rows=product.rows,
            columns=product.columns,
            rank=product.rank,
        )
        if result not in self._outputs:
            sizes = (*(1,) * (product.rank - 1), product.columns)
            self._told[result] = make_value_info(result, element, sizes)

    def _sums_behind(self, last: Any) -> list[Any]:
        """The products of bytes that a result was put together from; none if there is anything else."""
        sums, waiting = [], [name for name in last.input if name not in self._initializers]
        while waiting:
            node = self._makers.get(waiting.pop())
            if node is not None and node.op_type == "MatMulInteger":
                sums.append(node)
            elif node is not None and node.op_type in _BETWEEN:
                waiting += [name for name in node.input if name not in self._initializers]
            else:
                return []
        return sums

    def _rounding_of(self, result: str) -> Any | None:
        """The node that quantizes a result which nothing else reads; by one scale, to unsigned numbers."""
        reader = self._readers.get(result)
        if reader is None or self._count[result] != 1 or reader.op_type != "QuantizeLinear":
            return None
        given = [self._initializers.get(name) for name in reader.input[1:]]
        if len(given) != 2 or any(one is None or any(size != 1 for size in one.dims) for one in given):
            return None
        plain = all(attribute_value(one) in (0, 1) for one in reader.attribute if one.name != "axis")
        return reader if plain and given[1] is not None and given[1].data_type in _RESULTS else None

    def finish(self) -> dict[str, ValueInfoProto]:
        """Put the operators into the model. What was computed for the others alone is not used any more."""
        if self._new:
            nodes = [self._new.get(id(node), node) for node in self._model.graph.node]
            del self._model.graph.node[:]
            self._model.graph.node.extend(nodes)
            if all(opset.domain != DOMAIN for opset in self._model.opset_import):
                self._model.opset_import.append(make_opset(DOMAIN, 1))
        return self._told
