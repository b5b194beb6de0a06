"""Tensors and parameters as the vendor's library wants them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from openhtp.abi.writing import Array, Params, tensor_struct
from openhtp.core import status as st
from openhtp.core.errors import UnsupportedFeature
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorSpec
from openhtp.ops import find_op, resolve


def params_of(call: OpCall, statics: Mapping[str, Array] | None = None) -> Params:
    """The parameters that the caller gave, and those without which the op is not defined.

    Others are left out, so that the library's own defaults hold and are part of any comparison. Raises
    UnsupportedOp or InvalidArgument for a call that our own definition refuses.
    """
    node = resolve(call, statics)
    return {
        param.name: (_finite(node.params[param.name]), param.dtype, "tensor" if param.rank else "scalar")
        for param in find_op(call.op).params
        if param.name in node.params and (param.name in call.params or param.mandatory)
    }


def dense_tensor(spec: TensorSpec, data: Array | None, keep: list[Any]) -> ctypes.Structure:
    """The C form of a tensor, which for this library is dense and of fixed shape."""
    if spec.is_dynamic or spec.sparse_elements is not None:
        raise UnsupportedFeature(
            f"tensor {spec.name!r} is dynamic or sparse; the vendor library's are dense and of fixed shape",
            st.QNN_TENSOR_ERROR_UNSUPPORTED_FEATURE,
        )
    return tensor_struct(spec, data, keep)


def _finite(value: Any) -> Any:
    """An open end, as of a clamp, is the largest number that there is."""
    if isinstance(value, float) and math.isinf(value):
        return math.copysign(float(np.finfo(np.float32).max), value)
    return value
