"""The slot for an op's ONNX mapping: data where names only differ, a function where more is to do.

The ONNX frontend hands each rule an ``OnnxView`` of a node and gets back QNN calls. It has already decided how
tensors are laid out in the QNN graph (channel-last for images), so rules translate axes with ``view.axis`` and
permute weights with ``view.static``; they never import ``onnx``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt

from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorSpec

Array = npt.NDArray[Any]


class OnnxView(Protocol):
    """One ONNX node as a rule sees it."""

    op_type: str
    name: str
    opset: int
    inputs: tuple[TensorSpec | None, ...]
    outputs: tuple[TensorSpec, ...]

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as a Python value."""

    def constant(self, index: int) -> Array | None:
        """Real values of a constant input, else None."""

    def axis(self, axis: int, index: int = 0) -> int:
        """Axis of the QNN tensor that stands for this axis of the ONNX input (negative counts from the end)."""

    def static(self, index: int, perm: tuple[int, ...]) -> TensorSpec:
        """Constant input with its axes permuted, registered as a static tensor."""


@dataclass(frozen=True, slots=True)
class OnnxRule:
    """How one ONNX op type becomes this op.

    Without ``build`` the mapping is plain: same inputs and outputs in the same order, attributes renamed by
    ``attrs`` (ONNX name -> QNN parameter) and dropped when not listed, constant parameters from ``params``.
    """

    op_type: str
    since: int = 1
    attrs: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    build: Callable[[OnnxView], tuple[OpCall, ...]] | None = None
