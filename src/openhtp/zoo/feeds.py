"""Random inputs for a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, helper

Feeds = dict[str, npt.NDArray[Any]]

_BOUND = 3**0.5


def random_feeds(model: bytes, count: int = 1, *, seed: int = 0) -> list[Feeds]:
    """``count`` sets of inputs: numbers of variance 1 for floats, zeros for anything else.

    Floats are uniform, so that a few calibration samples see their whole range. All shapes must be fixed.
    """
    proto = ModelProto.FromString(model)
    constants = {tensor.name for tensor in proto.graph.initializer}
    random = np.random.default_rng(seed)
    sets: list[Feeds] = []
    for _ in range(count):
        feeds: Feeds = {}
        for value in proto.graph.input:
            if value.name in constants:
                continue
            kind = value.type.tensor_type
            shape = [dim.dim_value for dim in kind.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
            made = random.uniform(-_BOUND, _BOUND, shape) if dtype.kind == "f" else np.zeros(shape)
            feeds[value.name] = made.astype(dtype)
        sets.append(feeds)
    return sets
