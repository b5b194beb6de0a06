"""A finished QNN graph: tensors, their constant data, and nodes in an order that respects their data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorSpec


@dataclass(frozen=True, slots=True)
class Graph:
    """Tensors and nodes in the order they were added. Made by ``GraphBuilder.finish``, which has verified it."""

    name: str
    tensors: Mapping[str, TensorSpec] = field(default_factory=dict)
    statics: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    nodes: tuple[OpCall, ...] = ()

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Tensors that the client writes."""
        return tuple(spec for spec in self.tensors.values() if spec.kind.is_input)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Tensors that the client reads."""
        return tuple(spec for spec in self.tensors.values() if spec.kind.is_output)
