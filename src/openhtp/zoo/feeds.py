"""Random inputs for a model, and models quantized with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from openhtp.frontend.input_values import NOISE, input_values

Feeds = dict[str, npt.NDArray[Any]]


def random_feeds(model: bytes, count: int = 1, *, seed: int = 0) -> list[Feeds]:
    """``count`` sets of inputs: numbers of variance 1 for floats; ids, masks and lengths as they are used.

    Floats are uniform, so that a few calibration samples see their whole range. All shapes must be fixed.
    """
    values = input_values(ModelProto.FromString(model).graph)
    random = np.random.default_rng(seed)
    return [{name: value.draw(random) for name, value in values.items()} for _ in range(count)]


def feeds_in_words(model: bytes) -> dict[str, str]:
    """How ``random_feeds`` fills the inputs that are more than noise, by name."""
    values = input_values(ModelProto.FromString(model).graph)
    return {name: value.words for name, value in values.items() if value.words != NOISE}


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
