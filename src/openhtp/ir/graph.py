"""A finished QNN graph: tensors, their constant data, and nodes in an order that respects their data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorSpec
from openhtp.ir.def_use import DefUse
from openhtp.ops import Node, resolve


@dataclass(frozen=True, slots=True)
class QnnNode:
    """One use of an op. Tensors are named, their specs are the graph's; None is an optional input left out.

    ``origin`` and ``stays_float`` are those of ``OpCall``.
    """

    op: str
    name: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    package: str = "qti.aisw"
    origin: str = ""
    stays_float: bool = False


def node_of(call: OpCall) -> QnnNode:
    """A call as a node of the graph that holds its tensors."""
    inputs = tuple(None if spec is None else spec.name for spec in call.inputs)
    outputs = tuple(spec.name for spec in call.outputs)
    return QnnNode(call.op, call.name, inputs, outputs, call.params, call.package, call.origin, call.stays_float)


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Tensors and nodes in the order they were added. Made by ``GraphBuilder.finish``, which has verified it."""

    name: str
    tensors: Mapping[str, TensorSpec] = field(default_factory=dict)
    statics: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    nodes: tuple[QnnNode, ...] = ()
    # Nodes that were checked, by all that was read of them. Parameters count as the same if they are one object,
    # which is kept with the result.
    _resolved: dict[tuple[Any, ...], tuple[Mapping[str, Any], Node]] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Tensors that the client writes, in the order they were declared."""
        return tuple(spec for spec in self.tensors.values() if spec.kind.is_input)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Tensors that the client reads, in the order they were declared."""
        return tuple(spec for spec in self.tensors.values() if spec.kind.is_output)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of what the client reads."""
        return tuple(spec.name for spec in self.outputs)

    @property
    def given_names(self) -> frozenset[str]:
        """Names of the tensors that exist before the first node: constants, and those that the client writes."""
        return frozenset(self.statics) | {spec.name for spec in self.inputs}

    def call(self, node: QnnNode) -> OpCall:
        """The node with the specs of its tensors, as op definitions and the vendor's library take it."""
        inputs = tuple(None if name is None else self.tensors[name] for name in node.inputs)
        outputs = tuple(self.tensors[name] for name in node.outputs)
        return OpCall(
            node.op, node.name, inputs, outputs, node.params, node.package, node.origin, node.stays_float
        )

    def resolved(self, node: QnnNode) -> Node:
        """The node as op functions take it: checked when it is first asked for."""
        key = (node.op, node.name, node.inputs, node.outputs, node.package, id(node.params))
        known = self._resolved.get(key)
        if known is None:
            known = self._resolved[key] = node.params, resolve(self.call(node), self.statics)
        return known[1]

    def def_use(self) -> DefUse[QnnNode]:
        """The nodes that make and read each tensor."""
        return DefUse(self.nodes, self.output_names)
