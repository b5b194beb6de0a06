"""The slot for an op's ONNX mapping where that is only a matter of names.

Mappings that have to think (layouts, attributes that became inputs, several QNN ops) are functions of the ONNX
frontend, which knows how its tensors are laid out; ops never import ``onnx``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class OnnxRule:
    """One ONNX operator that is this op: same inputs and outputs in the same order.

    ``attrs`` renames attributes (ONNX name -> QNN parameter; those not listed are dropped), ``params`` sets
    parameters to constants. A parameter called ``axis`` is translated to the QNN tensor's order of axes.
    """

    op_type: str
    attrs: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
