"""Attention masks that can be quantized.

Exporters hide positions by adding minus infinity, or the lowest float, before a Softmax. A quantizer that meets
such a number makes steps so large that all scores become one. A hundred is as good as infinity there: exp(-100) is
nothing.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from openhtp.frontend.onnx_reader import parse_model

LOWEST = -100.0
# Below this nothing is a weight or a bias.
_HIDES = -1e4
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
# What masks are made and applied with. A bound of a Clip or a comparison is no mask.
_MAKE = ("Cast", "CastLike", "Concat", "Expand", "Gather", "Max", "Reshape", "Slice", "Tile", "Trilu", "Unsqueeze")
USES = frozenset(("Add", "Mul", "Where", *_MAKE))


def with_finite_masks(model: bytes) -> tuple[bytes, int]:
    """The model with numbers that hide positions brought to -100, and how many constants that were."""
    proto = parse_model(model)
    readers: dict[str, set[str]] = defaultdict(set)
    for node in proto.graph.node:
        for name in node.input:
            readers[name].add(node.op_type)
    changed = 0
    for tensor in proto.graph.initializer:
        if readers[tensor.name] and readers[tensor.name] <= USES:
            changed += _raise(tensor)
    for node in proto.graph.node:
        if node.op_type == "ConstantOfShape":
            changed += sum(_raise(item.t) for item in node.attribute if item.name == "value")
    return (proto.SerializeToString(), changed) if changed else (model, 0)


def _raise(tensor: Any) -> bool:
    """Bring what hides to -100, in place; tells whether there was any."""
    if tensor.data_type not in _FLOATS or tensor.data_location == TensorProto.EXTERNAL:
        return False
    array = numpy_helper.to_array(tensor)
    if not np.any(array <= _HIDES):
        return False
    raised = np.where(array <= _HIDES, array.dtype.type(LOWEST), array)
    tensor.CopyFrom(numpy_helper.from_array(raised, tensor.name))
    return True
