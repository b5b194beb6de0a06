"""Common parts of elementwise ops: shapes, truth, and families whose parameter ``operation`` names a member."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from openhtp.core.dtype import DType
from openhtp.ops._node import Array, Arrays, Emitter, Layout, Node, Results
from openhtp.ops._opdef import (
    Constraint,
    Infer,
    Lower,
    OpDef,
    Param,
    Reference,
    Sample,
    TypeRow,
    Work,
    vector_work,
)
from openhtp.ops._shapes import same_as_input
from openhtp.ops._tiles import split_anywhere


def elementwise(
    name: str,
    summary: str,
    types: tuple[TypeRow, ...],
    reference: Reference,
    lower: Lower,
    *,
    infer: Infer = same_as_input,
    **facts: Any,
) -> OpDef:
    """An op that computes each element by itself, in any layout; ``facts`` are further fields of its OpDef."""
    return OpDef(
        name=name,
        summary=summary,
        types=types,
        infer=infer,
        reference=reference,
        lower=lower,
        layout=Layout.ANY,
        tile=split_anywhere,
        **facts,
    )


def unary(
    name: str,
    summary: str,
    compute: Callable[[Array], Array],
    emit: Callable[[Emitter, str], str],
    types: tuple[TypeRow, ...],
    *,
    cost: int = 1,
    kind: str = "unary",
    low: float = -4.0,
    high: float = 4.0,
    **facts: Any,
) -> OpDef:
    """An elementwise op without parameters; ``emit`` builds it from the name of the input's values."""
    return elementwise(
        name,
        summary,
        types,
        lambda node, arrays: (compute(arrays[0]),),
        lambda node, e: e.put(0, emit(e, e.value(0))),
        work=vector_work(cost),
        kind=kind,
        samples=(Sample(((1, 6, 5, 4),), low=low, high=high),),
        **facts,
    )


def one_node(onnx_op: str, **attrs: Any) -> Callable[..., str]:
    """A function that emits one ONNX op of the same meaning, from an emitter and the names of the inputs."""
    return lambda e, *inputs: e.node(onnx_op, inputs, **attrs)


def truth_of(node: Node, e: Emitter, index: int) -> str:
    """An input as booleans."""
    if node.input(index).dtype is DType.BOOL_8:
        return e.value(index)
    return e.node("Cast", [e.value(index)], to="bool")


class Family:
    """Members in the order of their operations' numbers; each function asks the member that the node names."""

    def __init__(self, members: Mapping[str, OpDef]) -> None:
        self._members = tuple(members.values())
        choices = {word: number for number, word in enumerate(members)}
        self.param = Param("operation", mandatory=True, choices=choices)

    def member(self, node: Node) -> OpDef:
        """The op that the node stands for."""
        operation: int = node.params["operation"]
        return self._members[operation]

    def reference(self, node: Node, arrays: Arrays) -> Results:
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
