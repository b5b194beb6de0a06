"""A use of an op whose ports, parameters and types have been checked: what every function of an OpDef gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.errors import InternalError
from openhtp.core.tensor import TensorKind, TensorSpec

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """An op call with defaults filled in.

    ``params`` holds Python numbers for scalar parameters and numpy arrays for tensor parameters.
    ``statics`` holds the stored data of static inputs by tensor name, where it was known.
    """

    op: str
    name: str
    inputs: tuple[TensorSpec | None, ...]
    outputs: tuple[TensorSpec, ...]
    params: Mapping[str, Any]
    statics: Mapping[str, Array] = field(default_factory=dict)

    def has(self, index: int) -> bool:
        """Whether the optional input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int = 0) -> TensorSpec:
        """Spec of an input that is known to be given."""
        spec = self.inputs[index] if index < len(self.inputs) else None
        if spec is None:
            raise InternalError(f"{self.op} {self.name!r} reads input {index}, which was left out")
        return spec

    def shape(self, index: int = 0) -> Shape:
        """Shape of an input that is known to be given."""
        return self.input(index).shape

    def static(self, index: int) -> Array | None:
        """Stored data of a static input, if known."""
        if not self.has(index) or self.input(index).kind is TensorKind.UPDATEABLE_STATIC:
            return None
        return self.statics.get(self.input(index).name)

    def ints(self, param: str) -> tuple[int, ...]:
        """A tensor parameter as a flat tuple of ints."""
        return tuple(int(value) for value in np.asarray(self.params[param]).reshape(-1))

    def pairs(self, param: str) -> tuple[tuple[int, int], ...]:
        """A tensor parameter of shape [n, 2] as pairs of ints."""
        flat = self.ints(param)
        return tuple(zip(flat[::2], flat[1::2], strict=True))
