"""The networks run, are reproducible, keep their values in a sane range, and survive quantization."""

from __future__ import annotations

import numpy as np
import pytest

from openhtp import zoo
from openhtp.engine.onnxruntime import onnxruntime as ort

_SMALL = {
    "mobilenet_v2": lambda: zoo.mobilenet_v2(32, 0.25),
    "resnet18": lambda: zoo.resnet18(32),
    "small_cnn": zoo.small_cnn,
    "tiny_mlp": zoo.tiny_mlp,
    "transformer_blocks": lambda: zoo.transformer_blocks(1, seq=16, hidden=32, ffn=64),
}


def _run(model: bytes, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)[0]


def test_every_model_has_a_name() -> None:
    assert set(zoo.MODELS) == {*_SMALL, "resnet50"}


@pytest.mark.parametrize("name", _SMALL)
def test_values_are_of_sane_size_and_reproducible(name: str) -> None:
    model = _SMALL[name]()
    assert model == _SMALL[name]()
    feeds = zoo.random_feeds(model, 2)
    first, second = (_run(model, each) for each in feeds)
    assert 0.1 < first.std() < 30
    assert not np.allclose(first, second), "outputs must depend on the input"


@pytest.mark.parametrize(("activation", "weight", "per_channel"), [("u8", "u8", False), ("u16", "s8", True)])
def test_quantized_form_stays_close(activation: str, weight: str, per_channel: bool) -> None:
    model = zoo.small_cnn()
    quantized = zoo.quantized(model, activation, weight, per_channel=per_channel)
    assert b"DequantizeLinear" in quantized
    feeds = zoo.random_feeds(model)[0]
    exact, rounded = _run(model, feeds), _run(quantized, feeds)
    assert 10 * np.log10(np.sum(exact**2) / np.sum((exact - rounded) ** 2)) > 20


def test_resolution_and_width_scale_the_network() -> None:
    small, large = zoo.mobilenet_v2(64, 0.5), zoo.mobilenet_v2(64, 1.0)
    assert len(small) < 0.7 * len(large)
    assert zoo.random_feeds(small)[0]["input"].shape == (1, 3, 64, 64)
