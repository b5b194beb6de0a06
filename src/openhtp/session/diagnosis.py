"""Why a model is further from ONNX Runtime than asked: the first node that half precision cannot follow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, numpy_helper

from openhtp.core.errors import QnnError
from openhtp.core.precision import half_constant
from openhtp.frontend.branches import settled
from openhtp.session.accuracy import NodeReport, first_diverging, trace_nodes
from openhtp.session.range_check import LARGEST, check_range

Array = npt.NDArray[Any]
_SAMPLES = 2
_WHY = {
    "Log": "a logarithm shows what half precision rounds off small numbers beside large ones",
    "Sub": "the difference of nearly equal numbers is mostly their rounding",
    "Div": "a quotient by a small number multiplies its rounding",
    "Reciprocal": "the reciprocal of a small number multiplies its rounding",
    "Sin": "the angle is so large that its rounding is a turn",
    "Cos": "the angle is so large that its rounding is a turn",
}


@dataclass(frozen=True, slots=True)
class HalfPrecisionLoss:
    """The node at which a model leaves half precision, and how."""

    node: str
    op_type: str
    words: str

    def __str__(self) -> str:
        return self.words


def find_loss(
    model: bytes, samples: Sequence[Mapping[str, Array]], least_db: float, soc: str | None = None
) -> HalfPrecisionLoss | None:
    """The first node beyond the range of half precision, otherwise the first below ``least_db`` decibels.

    None if there is no such node, or the model cannot be looked into.
    """
    try:
        settled_model = settled(model, samples)
        overflows = check_range(settled_model, samples)
        if overflows:
            first, more = overflows[0], len(overflows) - 1
            return HalfPrecisionLoss(first.node, first.op_type, f"{first}{f' (and {more} more)' if more else ''}")
        diverging = first_diverging(
            trace_nodes(settled_model, settled_model, samples[:_SAMPLES], soc=soc, in_parts=True), least_db
        )
    except QnnError:
        return None
    return None if diverging is None else _lost_in(diverging, least_db, _vanished(settled_model, diverging.tensor))


def _vanished(model: bytes, tensor: str) -> str:
    """A constant next to the node that makes a tensor which half precision makes 0, or brings to its largest."""
    graph = ModelProto.FromString(model).graph
    makers = {name: node for node in graph.node for name in node.output}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            constants.update((node.output[0], item.t) for item in node.attribute if item.name == "value")
    reader = makers[tensor]
    near = [*reader.input, *(name for source in reader.input if source in makers for name in makers[source].input)]
    for name in near:
        constant = constants.get(name)
        if constant is not None and constant.data_type == TensorProto.FLOAT and math.prod(constant.dims) == 1:
            number = float(numpy_helper.to_array(constant).reshape(-1)[0])
            half = float(half_constant(np.array(number)))
            if number != half and (not half or abs(half) == LARGEST):
                return f"the constant {name!r}, {number:g}, is {half:g} in half precision"
    return ""


def _lost_in(report: NodeReport, least_db: float, vanished: str) -> HalfPrecisionLoss:
    reasons = [vanished, _WHY.get(report.op_type.rpartition("+")[2], "")]
    reason = "; ".join(words for words in reasons if words)
    first = f"node {report.node!r} ({report.op_type}) is the first"
    if math.isfinite(report.htp.sqnr_db):
        loss = f"{report.htp.sqnr_db:.1f} dB in half precision, {report.lost_db:.1f} of them lost in it"
        words = f"{first} below {least_db:g} dB: {loss}"
    else:
        words = f"{first} that is infinite or NaN in half precision"
    words += f"; {reason}" if reason else ""
    return HalfPrecisionLoss(report.node, report.op_type, words)
