"""One use of an operation: which op, on which tensors, with which parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openhtp.core.tensor import TensorSpec


@dataclass(frozen=True, slots=True)
class OpCall:
    """A node as data. ``inputs`` may hold None where an optional input is left out."""

    op: str
    name: str
    inputs: tuple[TensorSpec | None, ...]
    outputs: tuple[TensorSpec, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    package: str = "qti.aisw"
