"""Which 8-bit tensors are never rounded to their steps: those that only carry a convolution's result to its Prelu.

The vendor's library computes the two as one, from the accumulator on. Rounding in between would cost networks that
are made of such pairs several decibels.
"""

from __future__ import annotations

from collections import Counter

from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind
from openhtp.program.program import Program

_PRODUCER = "Conv2d"
_CONSUMER = "Prelu"


def unrounded_tensors(program: Program) -> frozenset[str]:
    """Names of tensors between a convolution and the Prelu that alone reads it."""
    reads = Counter(spec.name for node in program.nodes for spec in node.call.inputs if spec is not None)
    made = {
        node.call.outputs[0].name
        for node in program.nodes
        if node.call.op == _PRODUCER and node.clamp is None and node.call.outputs
    }
    found = set()
    for node in program.nodes:
        spec = node.call.inputs[0] if node.call.op == _CONSUMER else None
        if spec is None or spec.name not in made or reads[spec.name] != 1:
            continue
        eight_bits = spec.dtype.is_fixed_point and spec.dtype.bits == 8 and isinstance(spec.quant, ScaleOffset)
        if eight_bits and spec.kind is TensorKind.NATIVE:
            found.add(spec.name)
    return frozenset(found)
