"""Quantized forms of the networks here (or of any float model), calibrated on random numbers."""

from __future__ import annotations

from openhtp.zoo.feeds import random_feeds


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
