"""Keys that are turned within their pairs: the same model, whose keys have smaller ranges."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from openhtp import llm
from openhtp.llm.adapter import Adapter
from openhtp.llm.balancing import balanced, framed
from openhtp.llm.model import Thin

CONTEXT = 256
TEXT = [3, 90, 17, 17, 4, 60, 8, 33, 71, 2, 45, 12]


def leaning(**others: object) -> llm.Llama:
    """A model whose keys have one slow pair far from zero, which is seen from one side only."""
    options = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 64, "vocab": 96, "ffn": 96}
    model = llm.Llama(**options, context=CONTEXT, **others)  # type: ignore[arg-type]
    model.config = dataclasses.replace(model.config, biases=("wk", "wq"))
    for layer in (0, 1):
        bias = np.zeros((2, 2, 32), np.float32)
        # In 256 places this pair turns by 1.4; seen along its arc, it takes a larger square than seen aslant.
        bias[:, :, 18] = [300.0 * np.cos(0.1), -300.0 * np.sin(0.7)]
        model.weights[f"layers.{layer}.wk_bias"] = bias.reshape(-1)
        model.weights[f"layers.{layer}.wq_bias"] = np.full(256, 0.01, np.float32)
    return model


def shares(model: llm.Llama, **options: object) -> np.ndarray:
    logits = model.forward(TEXT, **options)[0].astype(np.float64)  # type: ignore[arg-type]
    power = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(power / power.sum(axis=-1, keepdims=True))


def square(model: llm.Llama) -> np.ndarray:
    """Half the square that holds the slow pair of each head in all places of the context."""
    keys = model.forward((TEXT * CONTEXT)[:CONTEXT])[1].keys[0]
    spans = np.ptp(keys, axis=1) / 2
    return np.asarray(np.maximum(spans[:, 18], spans[:, 50]))


@pytest.mark.parametrize("centred", [False, True])
def test_a_framed_model_computes_the_same(centred: bool) -> None:
    model = leaning()
    even, _, _ = framed(model, [], [], [TEXT], context=CONTEXT, centred=centred)
    np.testing.assert_allclose(shares(even), shares(model), atol=1e-4)
    assert not np.allclose(even.weights["layers.0.wk"], model.weights["layers.0.wk"])


def test_keys_that_turn_slowly_fit_into_a_smaller_square() -> None:
    model = leaning()
    even, _, _ = framed(model, [], [], [TEXT], context=CONTEXT, centred=True)
    smallest = []
    for degrees in range(0, 90, 2):
        turned = leaning()
        bias = turned.weights["layers.0.wk_bias"].reshape(2, 2, 32)
        pair = (bias[:, 0] + 1j * bias[:, 1]) * np.exp(1j * np.radians(degrees))
        turned.weights["layers.0.wk_bias"] = np.stack([pair.real, pair.imag], 1).reshape(-1).astype(np.float32)
        smallest.append(square(turned))
    assert (square(even) < square(model) * 0.9).all()
    assert (square(even) < np.min(smallest, axis=0) * 1.05).all()


def test_keys_with_norms_stay_as_they_are() -> None:
    model = llm.Llama(layers=1, hidden=64, heads=2, kv_heads=1, head_dim=64, vocab=96, ffn=96, qk_norm=True)
    assert framed(model, [], [], [TEXT], context=CONTEXT, centred=True)[0] is model


def test_adapters_and_runs_are_turned_with_their_weights() -> None:
    model, rng = leaning(), np.random.default_rng(0)
    added = {
        f"layers.0.{name}": Thin(
            rng.normal(size=(4, 64)).astype(np.float32), rng.normal(size=(rows, 4)).astype(np.float32)
        )
        for name, rows in (("wq", 256), ("wk", 128), ("wv", 128))
    }
    even, adapters, runs = framed(model, [Adapter("one", added)], [added], [TEXT], context=CONTEXT, centred=True)
    expected = shares(model, added=added)
    np.testing.assert_allclose(shares(even, added=runs[0]), expected, atol=1e-4)
    np.testing.assert_allclose(shares(even, added=adapters[0].matrices), expected, atol=1e-4)
    assert np.abs(expected - shares(model)).max() > 0.01


def test_ranges_of_keys_are_those_of_framed_ones(austen: llm.Llama) -> None:
    text = [int(token) for token in np.random.default_rng(0).integers(1, 1000, 200)]
    model, _, ranges = balanced(austen, [], [], [text], context=1024, wide=True)
    keys = model.forward(text)[1].keys
    for layer, held in enumerate(keys):
        low, high = ranges[f"layers.{layer}.key"]
        assert low <= held.min() * (1 - 1e-5) + 1e-3
        assert held.max() <= high * (1 + 1e-5) + 1e-3
