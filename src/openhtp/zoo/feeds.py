"""Random inputs for a model, and models quantized with them."""

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
            numbers = random.uniform(-_BOUND, _BOUND, shape) if dtype.kind == "f" else np.zeros(shape)
            feeds[value.name] = numbers.astype(dtype)
        sets.append(feeds)
    return sets


def quantized(
    model: bytes,
    activation: str = "u8",
    weight: str = "u8",
    *,
    per_channel: bool = False,
    samples: int = 8,
    seed: int = 1,
) -> bytes:
    """A QDQ model for the HTP. The ranges come from random inputs, so use it to measure, not to ship."""
    # The quantizer takes half a second to import, which the float networks need not wait for.
    from openhtp.frontend.quantize import quantize_model

    feeds = random_feeds(model, samples, seed=seed)
    return quantize_model(model, feeds, activation=activation, weight=weight, per_channel=per_channel).model
