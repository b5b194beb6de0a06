"""What passes hand on: a program in the making."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from openhtp.core.tensor import TensorSpec
from openhtp.ir.graph import Graph
from openhtp.ops import Node, find_op, resolve
from openhtp.program.program import ProgramNode

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Draft:
    """Tensors, static data and nodes in running order. Passes return a new one."""

    name: str
    tensors: Mapping[str, TensorSpec]
    statics: Mapping[str, Array]
    nodes: tuple[ProgramNode, ...]

    def resolved(self, node: ProgramNode) -> Node:
        """The node as op functions take it."""
        return resolve(node.call, self.statics)

    def uses(self) -> Counter[str]:
        """How many nodes read each tensor; client-visible outputs count as one more."""
        counts = Counter(spec.name for node in self.nodes for spec in node.call.inputs if spec is not None)
        counts.update(spec.name for spec in self.tensors.values() if spec.kind.is_output)
        return counts

    def with_nodes(self, nodes: Iterable[ProgramNode]) -> Draft:
        """The draft with other nodes."""
        return dataclasses.replace(self, nodes=tuple(nodes))


def draft_graph(graph: Graph) -> Draft:
    """Start from a graph: every node stands for itself, with its work measured."""
    nodes = []
    for call in graph.nodes:
        node = resolve(call, graph.statics)
        nodes.append(ProgramNode(call, find_op(call.op).work(node), (call.name,)))
    return Draft(graph.name, graph.tensors, graph.statics, tuple(nodes))
