"""Who makes and who reads a value: what patterns are found with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from openhtp.frontend.model import OnnxNode
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
        """The one node that reads a value, if there is just one, it is of these types, and no client reads it.

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
