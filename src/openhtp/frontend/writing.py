"""Writes ONNX nodes in place of one that is being taken apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from openhtp.core.errors import UnsupportedOp
from openhtp.frontend.model import Array, OnnxNode, ValueType

# Nodes are written as in this opset, whatever the model's is.
_OPSET = 18


class Writer:
    """Collects nodes; the last one gets the name of the output that it stands for."""

    def __init__(
        self, node: OnnxNode, types: Mapping[str, ValueType], constants: Mapping[str, Array] | None = None
    ) -> None:
        self.node = node
        self.nodes: list[OnnxNode] = []
        self._types = types
        self._constants = constants or {}
        # The first output may be left out.
        self._stem = next((name for name in node.outputs if name), node.name)
        self._names = 0

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute of the node that is taken apart."""
        return self.node.attr(name, default)

    def input(self, index: int) -> str:
        """Name of one of its inputs."""
        return self.node.inputs[index]

    def type(self, index: int) -> ValueType:
        """Type of one of its inputs."""
        return self._types[self.node.inputs[index]]

    def known(self, index: int) -> Array | None:
        """Value of one of its inputs, if it is given and a constant."""
        return self._constants.get(self.node.inputs[index]) if self.node.has(index) else None

    def new_name(self, word: str) -> str:
        """A name for a value that nothing else has."""
        self._names += 1
        return f"{self._stem}/{word}_{self._names}"

    def constant(self, data: Any) -> str:
        """A constant."""
        array: Array = np.asarray(data)
        return self.add("Constant", [], {"value": array})

    def add(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Any] | None = None, *, opset: int = _OPSET
    ) -> str:
        """A node in between; gives the name of its result."""
        return self.put(op, inputs, [f"{self._stem}/{op}_{len(self.nodes)}"], attrs, opset=opset)

    def end(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Any] | None = None, *, opset: int = _OPSET
    ) -> str:
        """The node that gives the output."""
        return self.put(op, inputs, self.node.outputs[:1], attrs, opset=opset)

    def put(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attrs: Mapping[str, Any] | None = None,
        *,
        opset: int = _OPSET,
    ) -> str:
        """A node with these results; gives the name of the first."""
        name = f"{self.node.name}/{op}_{len(self.nodes)}"
        self.nodes.append(OnnxNode(op, "", name, tuple(inputs), tuple(outputs), dict(attrs or {}), opset))
        return outputs[0]

    def refuse(self, problem: str, advice: str) -> NoReturn:
        """The node cannot be taken apart."""
        raise UnsupportedOp(f"{self.node.title}: {problem}; {advice}")
