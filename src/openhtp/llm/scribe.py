"""Writes QNN graphs of a quantized model: tensors with their encodings, one node after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.enumerations import DataFormat
from openhtp.core.opcall import OpCall
from openhtp.core.quant import Encoding
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ir.builder import GraphBuilder
from openhtp.ir.graph import Graph

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


class Scribe:
    """A graph being written. Nodes are named after what they make."""

    def __init__(self, name: str) -> None:
        self._builder = GraphBuilder(name)

    def given(
        self,
        name: str,
        shape: Shape,
        dtype: DType,
        quant: Encoding | None = None,
        data_format: DataFormat = DataFormat.DENSE,
    ) -> TensorSpec:
        """An input."""
        return self._added(TensorSpec(name, shape, dtype, quant, TensorKind.APP_WRITE, data_format=data_format))

    def constant(
        self, name: str, data: Array, dtype: DType, quant: Encoding | None = None, *, updateable: bool = False
    ) -> TensorSpec:
        """A constant, written once however often it is asked for; ``updateable``: it can be exchanged later."""
        known = self._builder.tensors.get(name)
        if known is not None:
            return known
        kind = TensorKind.UPDATEABLE_STATIC if updateable else TensorKind.STATIC
        spec = TensorSpec(name, data.shape, dtype, quant, kind)
        self._builder.add_tensor(spec, np.ascontiguousarray(data))
        return spec

    def made(
        self,
        name: str,
        op: str,
        inputs: Sequence[TensorSpec],
        shape: Shape,
        *,
        dtype: DType | None = None,
        quant: Encoding | None = None,
        result: DataFormat | None = None,
        **params: Any,
    ) -> TensorSpec:
        """What a node makes of its inputs; type and encoding are those of the first one unless given.

        ``result`` makes it an output of the graph, in that data format.
        """
        first = inputs[0]
        if dtype is None:
            dtype, quant = first.dtype, first.quant if quant is None else quant
        kind = TensorKind.NATIVE if result is None else TensorKind.APP_READ
        spec = TensorSpec(name, shape, dtype, quant, kind, data_format=result or DataFormat.DENSE)
        self._added(spec)
        self._builder.add_node(OpCall(op, f"{name}:{op}", tuple(inputs), (spec,), params, "qti.aisw"))
        return spec

    def reshaped(self, name: str, given: TensorSpec, shape: Shape) -> TensorSpec:
        """The same elements in another shape."""
        return self.made(name, "Reshape", [given], shape)

    def transposed(self, name: str, given: TensorSpec, perm: Sequence[int]) -> TensorSpec:
        """Axes in another order."""
        shape = tuple(given.shape[axis] for axis in perm)
        return self.made(name, "Transpose", [given], shape, perm=np.array(perm, np.uint32))

    def sliced(self, name: str, given: TensorSpec, axis: int, begin: int, end: int) -> TensorSpec:
        """A range of one axis; the tensor itself if that is all of it."""
        axis %= given.rank
        if (begin, end) == (0, given.shape[axis]):
            return given
        ranges = [[0, size, 1] for size in given.shape]
        ranges[axis] = [begin, end, 1]
        shape = (*given.shape[:axis], end - begin, *given.shape[axis + 1 :])
        return self.made(name, "StridedSlice", [given], shape, ranges=np.array(ranges, np.int32))

    def joined(
        self, name: str, parts: Sequence[TensorSpec], axis: int, result: DataFormat | None = None
    ) -> TensorSpec:
        """Tensors of one encoding behind each other."""
        axis %= parts[0].rank
        total = sum(part.shape[axis] for part in parts)
        shape = (*parts[0].shape[:axis], total, *parts[0].shape[axis + 1 :])
        return self.made(name, "Concat", parts, shape, axis=axis, result=result)

    def finish(self) -> Graph:
        """The verified graph."""
        return self._builder.finish()

    def _added(self, spec: TensorSpec) -> TensorSpec:
        self._builder.add_tensor(spec)
        return spec
