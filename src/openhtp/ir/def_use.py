"""Which nodes make and read each tensor: one view for all code that looks for patterns in a list of nodes.

A node here is whatever names the tensors it reads and makes: a node of a model file or of a graph, or a kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar


class NamesTensors(Protocol):
    """Something that reads and makes tensors, by name. An input that is left out is None or empty."""

    @property
    def inputs(self) -> Sequence[str | None]:
        """Names of what it reads."""

    @property
    def outputs(self) -> Sequence[str]:
        """Names of what it makes."""


N = TypeVar("N", bound=NamesTensors)


class DefUse(Generic[N]):
    """Makers and readers of every tensor. ``outputs`` names those that the client reads, too."""

    def __init__(self, nodes: Iterable[N], outputs: Iterable[str]) -> None:
        self._makers: dict[str, N] = {}
        self._readers: dict[str, list[N]] = {}
        self._outputs = frozenset(outputs)
        for node in nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    self._readers.setdefault(name, []).append(node)
            self._makers.update((name, node) for name in node.outputs if name)

    def maker(self, name: str | None) -> N | None:
        """The node that makes a tensor; None for constants and what the client gives."""
        return None if name is None else self._makers.get(name)

    def readers(self, name: str) -> Sequence[N]:
        """Every node that reads a tensor, once, in running order."""
        return self._readers.get(name, ())

    def is_output(self, name: str) -> bool:
        """Whether the client reads the tensor."""
        return name in self._outputs

    def only_reader(self, name: str) -> N | None:
        """The node that alone reads a tensor; None if there are others, or the client is one."""
        readers = self.readers(name)
        return readers[0] if len(readers) == 1 and name not in self._outputs else None


def needed_nodes(nodes: Sequence[N], outputs: Iterable[str]) -> list[N]:
    """The nodes that some output needs, directly or through others, in their order."""
    needed = set(outputs)
    kept: list[N] = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            kept.append(node)
            needed.update(name for name in node.inputs if name)
    return kept[::-1]


def order_problem(nodes: Iterable[N], inputs: Iterable[str], outputs: Iterable[str]) -> str | None:
    """What is wrong with an order: something is read before it is made, made twice, or never. None if nothing is.

    ``inputs`` names the tensors that exist before the first node: constants, and those that the client writes.
    """
    ready = set(inputs)
    for node in nodes:
        for name in node.inputs:
            if name and name not in ready:
                return f"{_title(node)} reads {name!r} before it is produced"
        for name in node.outputs:
            if name in ready:
                return f"{_title(node)} produces {name!r}, which exists already"
            ready.add(name)
    missing = next((name for name in outputs if name not in ready), None)
    return None if missing is None else f"output {missing!r} is produced by no node"


def _title(node: NamesTensors) -> str:
    return f"node {getattr(node, 'name', '')!r}"
