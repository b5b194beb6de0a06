"""An ONNX model as plain data, as the reader returns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

MICROSOFT = "com.microsoft"


@dataclass(frozen=True, slots=True)
class ValueType:
    """Element type and shape of a value."""

    dtype: np.dtype[Any]
    shape: Shape


@dataclass(frozen=True, slots=True, eq=False)
class OnnxNode:
    """A node. ``inputs`` and ``outputs`` hold "" where an optional one is left out; ``name`` is unique."""

    op_type: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 1

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as a Python value."""
        return self.attrs.get(name, default)

    @property
    def title(self) -> str:
        """How messages call it."""
        domain = f"{self.domain}." if self.domain else ""
        return f"node {self.name!r} ({domain}{self.op_type})"

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.inputs) and bool(self.inputs[index])


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """One side of an If with its nodes and constants. Other names belong to the surrounding graph."""

    nodes: tuple[OnnxNode, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class OnnxModel:
    """Nodes in an order that respects their data, and everything they refer to."""

    name: str
    nodes: tuple[OnnxNode, ...]
    inputs: Mapping[str, ValueType]
    outputs: Mapping[str, ValueType | None]
    constants: Mapping[str, Array]
    # Element types that numpy has no name for, by constant: "int4", "uint4".
    narrow: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    producer: str = ""
    version: int = 0
    description: str = ""
    domain: str = ""
    # Types that the file states of values between nodes, and of outputs, where their sizes are fixed.
    declared: Mapping[str, ValueType] = field(default_factory=dict)


def is_op(node: OnnxNode, op_type: str) -> bool:
    """Whether a node is a standard operator of this type (both domains count for those that have two)."""
    return node.op_type == op_type and node.domain in ("", MICROSOFT)
