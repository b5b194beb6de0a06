"""What the documents say of number formats: accuracy rises with the bits of activations and of weights."""

from __future__ import annotations

import numpy as np
import pytest

import openhtp as htp
from openhtp import zoo
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.frontend.quantize import quantize_model


class Measured:
    """A float network of the zoo, and how near its other forms come to it on the emulated chip."""

    def __init__(self, model: bytes) -> None:
        self._model = model
        self._samples = [zoo.random_feeds(model, seed=seed)[0] for seed in range(4)]
        session = onnxruntime.InferenceSession(model)
        self._exact = np.concatenate([session.run(None, sample)[0] for sample in self._samples])

    def decibels(self, activation: str = "", weight: str = "s8") -> float:
        """Signal to noise; in half precision unless activations have a fixed-point type."""
        form = self._model
        if activation:
            quantized = quantize_model(form, self._samples, activation=activation, weight=weight, per_channel=True)
            form = quantized.model
        with htp.InferenceSession(form, soc="SM8650") as session:
            found = np.concatenate([session.run(None, sample)[0] for sample in self._samples])
        return float(10 * np.log10((self._exact**2).sum() / ((self._exact - found) ** 2).sum()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_accuracy_rises_from_a8_to_a16_to_half_precision() -> None:
    network = Measured(zoo.tiny_mlp())
    a8, a16, half = network.decibels("u8"), network.decibels("u16"), network.decibels()
    assert a8 + 1 < a16
    assert a16 + 6 < half


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_16_bit_weights_are_more_accurate_than_8_bit_ones() -> None:
    """With 16-bit activations; about as accurate as half precision, or more."""
    network = Measured(zoo.tiny_mlp())
    narrow, wide = network.decibels("u16", "s8"), network.decibels("u16", "s16")
    assert wide > narrow + 12
    assert wide > network.decibels() - 6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_was_calibrated_with_random_data_is_less_accurate() -> None:
    """Its inputs are around 3, which random ones with a mean of 0 do not reach."""
    model = zoo.tiny_mlp()
    ((name, example),) = zoo.random_feeds(model)[0].items()
    random = np.random.default_rng(0)
    inputs = [{name: random.normal(3, 0.2, example.shape).astype(np.float32)} for _ in range(16)]
    noise = [{name: random.normal(0, 1, example.shape).astype(np.float32)} for _ in range(8)]
    session = onnxruntime.InferenceSession(model)
    exact = np.concatenate([session.run(None, each)[0] for each in inputs[8:]])
    errors = {}
    for kind, samples in (("its own", inputs[:8]), ("random", noise)):
        with htp.InferenceSession(quantize_model(model, samples).model, soc="SM8650") as quantized:
            found = np.concatenate([quantized.run(None, each)[0] for each in inputs[8:]])
        errors[kind] = float(((exact - found) ** 2).sum())
    assert errors["random"] > 100 * errors["its own"]
