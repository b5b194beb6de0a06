"""Which float values of a QDQ model are really fixed point.

A quantized model is a float model with QuantizeLinear and DequantizeLinear around its operators. The HTP computes
``DQ -> op -> Q`` as one op on integers; this module finds, for each float value, the encoding that the Q after it
asks for, so that the op before can store its result in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openhtp.core.dtype import DType
from openhtp.core.quant import Encoding
from openhtp.frontend import encodings
from openhtp.frontend.model import OnnxNode, is_op
from openhtp.frontend.typing_pass import TypedModel
from openhtp.ir.def_use import DefUse

_CLAMPS = ("Relu", "Clip")


@dataclass(frozen=True, slots=True)
class QuantizationTarget:
    """The type and encoding that a value is to be stored in, and the name it has after being quantized."""

    dtype: DType
    quant: Encoding
    quantized_name: str


def find_targets(model: TypedModel) -> dict[str, QuantizationTarget]:
    """Encodings of float values that are only read by quantizers, directly or after a clamp."""
    uses = DefUse(model.nodes, model.source.outputs)
    targets: dict[str, QuantizationTarget] = {}
    for node in reversed(model.nodes):
        for name in node.outputs:
            if name and not uses.is_output(name):
                found = _target(uses.readers(name), model, targets)
                if found is not None:
                    targets[name] = found
    return targets


def _target(
    readers: Sequence[OnnxNode], model: TypedModel, targets: Mapping[str, QuantizationTarget]
) -> QuantizationTarget | None:
    if not readers:
        return None
    first = readers[0]
    if all(is_op(node, "QuantizeLinear") for node in readers):
        # Readers with another encoding get a conversion from the first one's.
        fixed = encodings.read_encoding(first, model.types, model.constants)
        return QuantizationTarget(*encodings.activation(*fixed), first.outputs[0])
    if len(readers) == 1 and first.op_type in _CLAMPS and not first.domain:
        # clamp(round(x)) is round(clamp(x)) in one encoding, so the op before the clamp may use it as well.
        after = targets.get(first.outputs[0])
        return None if after is None else QuantizationTarget(after.dtype, after.quant, "")
    return None
