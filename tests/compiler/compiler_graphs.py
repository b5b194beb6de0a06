"""Small graphs for tests of the compiler: tensors are made as they are named."""

from __future__ import annotations

from typing import Any

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ir.builder import GraphBuilder
from openhtp.ir.graph import Graph

SHAPE = (1, 8, 8, 32)


class GraphOf:
    """A graph of nodes that are named like what they make. ``quant`` makes all of it 8-bit."""

    def __init__(self, quant: ScaleOffset | None = None) -> None:
        self._quant = quant
        self._dtype = DType.UFIXED_POINT_8 if quant else DType.FLOAT_32
        self._specs: list[tuple[TensorSpec, np.ndarray | None]] = []
        self._calls: list[tuple[str, list[TensorSpec], str, dict[str, Any]]] = []
        self._made: dict[str, TensorSpec] = {}

    def _add(self, name: str, shape: Any, kind: TensorKind, data: np.ndarray | None = None) -> TensorSpec:
        spec = self._made[name] = TensorSpec(name, tuple(shape), self._dtype, self._quant, kind)
        self._specs.append((spec, data))
        return spec

    def input(self, name: str, shape: Any = SHAPE) -> TensorSpec:
        """A tensor that the client writes."""
        return self._add(name, shape, TensorKind.APP_WRITE)

    def constant(self, name: str, shape: Any = (32,)) -> TensorSpec:
        """A tensor of ones."""
        return self._add(name, shape, TensorKind.STATIC, np.ones(shape, self._dtype.numpy))

    def node(self, op: str, inputs: list[TensorSpec], made: str, shape: Any = SHAPE, **params: Any) -> TensorSpec:
        """A node, and the tensor that it makes."""
        self._calls.append((op, inputs, made, params))
        return self._add(made, shape, TensorKind.NATIVE)

    def finish(self, *outputs: str) -> Graph:
        """The graph; these tensors are for the client."""
        builder = GraphBuilder("g")
        found = {}
        for spec, data in self._specs:
            kind = TensorKind.APP_READ if spec.name in outputs else spec.kind
            found[spec.name] = TensorSpec(spec.name, spec.shape, spec.dtype, spec.quant, kind)
            builder.add_tensor(found[spec.name], data)
        for op, inputs, made, params in self._calls:
            builder.add_node(OpCall(op, made, tuple(found[spec.name] for spec in inputs), (found[made],), params))
        return builder.finish()
