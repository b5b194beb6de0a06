"""Ops that stand for a family: a parameter ``operation`` says which member is meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from openhtp.ops._emit import Emitter
from openhtp.ops._node import Array, Node
from openhtp.ops._opdef import Constraint, OpDef, Param, Work


class Family:
    """Members by the number of their operation; each function asks the member that the node names."""

    def __init__(self, numbers: Mapping[str, int], members: Mapping[str, OpDef]) -> None:
        self._members = {number: members[word] for word, number in numbers.items()}
        self.param = Param("operation", mandatory=True, choices=numbers)

    def member(self, node: Node) -> OpDef:
        """The op that the node stands for."""
        return self._members[node.params["operation"]]

    def reference(self, node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """The member's reference."""
        return self.member(node).reference(node, arrays)

    def lower(self, node: Node, e: Emitter) -> None:
        """The member's lowering."""
        self.member(node).lower(node, e)

    def work(self, node: Node) -> Work:
        """The member's work."""
        return self.member(node).work(node)

    @property
    def types_fit(self) -> Constraint:
        """The family's table of types is wider than that of each member."""

        def check(node: Node) -> bool:
            inputs = [None if spec is None else spec.dtype for spec in node.inputs]
            outputs = [spec.dtype for spec in node.outputs]
            return any(row.accepts(inputs, outputs) for row in self.member(node).types)

        return Constraint("the chosen operation accepts these types", check)
