"""A node's parameters with the forms and types that the library wants, from our own definition of its op."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from openhtp.core.opcall import OpCall
from openhtp.ops import find_op, resolve
from openhtp.vendor.marshal import Array, Params


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


def _finite(value: Any) -> Any:
    """An open end, as of a clamp, is the largest number that there is."""
    if isinstance(value, float) and math.isinf(value):
        return math.copysign(float(np.finfo(np.float32).max), value)
    return value
