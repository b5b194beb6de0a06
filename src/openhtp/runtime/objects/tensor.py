"""A tensor of a graph as the client holds it: its id, its spec and the graph it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openhtp.core.dtype import DType
from openhtp.core.enumerations import DataFormat
from openhtp.core.quant import Encoding
from openhtp.core.tensor import TensorKind, TensorSpec

if TYPE_CHECKING:
    from openhtp.runtime.objects.graph import Graph


class Tensor:
    """Made by ``Graph.add_tensor``. The id is unique in the context and survives into context binaries."""

    __slots__ = ("graph", "id", "spec")

    def __init__(self, number: int, spec: TensorSpec, graph: Graph) -> None:
        self.id = number
        self.spec = spec
        self.graph = graph

    @property
    def name(self) -> str:
        """Name in the graph."""
        return self.spec.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions; the largest, where they may vary."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.spec.dtype

    @property
    def quant(self) -> Encoding | None:
        """Quantization encoding."""
        return self.spec.quant

    @property
    def kind(self) -> TensorKind:
        """Its kind: which side writes it, and which reads it."""
        return self.spec.kind

    @property
    def data_format(self) -> DataFormat:
        """How its elements lie in memory."""
        return self.spec.data_format

    @property
    def nbytes(self) -> int:
        """Bytes in client memory."""
        return self.spec.nbytes

    def __repr__(self) -> str:
        return f"<Tensor {self.id} {self.spec}>"
