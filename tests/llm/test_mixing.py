"""Keys whose elements are mixed: the same model, whose scores suffer less from 8-bit keys."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import openhtp as htp
from openhtp import llm
from openhtp.llm.adapter import Adapter
from openhtp.llm.balancing import balanced, mixed
from openhtp.llm.model import KEY_MIX, Thin
from openhtp.llm.quantizing import kv_encoding
from tests.llm.test_framing import CONTEXT, TEXT, leaning, shares

MIX = f"layers.0.{KEY_MIX}"


def attentive() -> llm.Llama:
    """A model whose queries look at one slow pair of the keys far more than at all others."""
    model = leaning()
    for layer in (0, 1):
        for name in ("wq", "wk"):
            model.weights[f"layers.{layer}.{name}"] *= 0.3
        bias = np.full((4, 2, 32), 0.01, np.float32)
        bias[:, :, 18] = 0.4
        model.weights[f"layers.{layer}.wq_bias"] = bias.reshape(-1)
    return model


def test_a_mixed_model_computes_the_same() -> None:
    model = attentive()
    other, _, _ = mixed(model, [], [], [TEXT], context=CONTEXT)
    np.testing.assert_allclose(shares(other), shares(model), atol=1e-4)
    whole = other.weights[MIX] @ other.weights[MIX]
    sizes = np.diagonal(whole, axis1=1, axis2=2)
    np.testing.assert_array_equal(whole, sizes[:, :, None] * np.eye(64))
    assert sizes[0, 18] == sizes[0, 50] > 2  # the pair that matters is one of those that are mixed
    several = [[3], [90], [17]]
    expected = np.concatenate([model.forward(ids)[0] for ids in several])
    abreast = other.forward([ids[0] for ids in several], abreast=True)[0]
    np.testing.assert_allclose(abreast, expected, atol=1e-4)


def scores_rounded(model: llm.Llama, span: tuple[float, float]) -> np.ndarray:
    """Scores of the first layer with keys in 8 bits."""
    scale, found = np.float32(kv_encoding(span).scale), {}

    def watch(name: str, values: np.ndarray) -> np.ndarray:
        found[name] = values
        return np.rint(values / scale) * scale if name == "layers.0.key" else values

    model.forward((TEXT * CONTEXT)[:CONTEXT], watch=watch)
    scores = np.tril(found["layers.0.scores"].astype(np.float64))
    return np.asarray(scores)


def test_errors_of_scores_are_smaller() -> None:
    errors = []
    for mixes in (False, True):
        model, _, ranges = balanced(attentive(), [], [], [TEXT], context=CONTEXT, wide=True, mixes=mixes)
        assert (MIX in model.weights) == mixes
        low, high = ranges["layers.0.key"]
        exact = scores_rounded(model, (low * 1e-4, high * 1e-4))
        errors.append(np.square(scores_rounded(model, (low, high)) - exact).mean())
    assert errors[1] < 0.6 * errors[0]


def test_ranges_hold_in_all_places() -> None:
    model, _, ranges = balanced(attentive(), [], [], [TEXT], context=CONTEXT, wide=True, mixes=True)
    for layer, keys in enumerate(model.forward((TEXT * CONTEXT)[:CONTEXT])[1].keys):
        low, high = ranges[f"layers.{layer}.key"]
        assert low * 1.05 <= keys.min()
        assert keys.max() <= high * 1.05


def test_keys_with_norms_are_not_mixed() -> None:
    sizes = {"layers": 1, "hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 64, "vocab": 96, "ffn": 96}
    model = llm.Llama(**sizes, qk_norm=True)
    assert mixed(model, [], [], [TEXT], context=CONTEXT)[0] is model


def test_adapters_and_runs_are_mixed_with_their_weights() -> None:
    model, rng = attentive(), np.random.default_rng(0)
    added = {
        f"layers.0.{name}": Thin(
            rng.normal(size=(4, 64)).astype(np.float32) * 0.1, rng.normal(size=(rows, 4)).astype(np.float32) * 0.1
        )
        for name, rows in (("wq", 256), ("wk", 128), ("wv", 128))
    }
    other, adapters, runs = mixed(model, [Adapter("one", added)], [added], [TEXT], context=CONTEXT)
    expected = shares(model, added=added)
    assert MIX in other.weights
    np.testing.assert_allclose(shares(other, added=runs[0]), expected, atol=1e-4)
    np.testing.assert_allclose(shares(other, added=adapters[0].matrices), expected, atol=1e-4)


@pytest.mark.parametrize("native", [True, False])
def test_graphs_of_mixed_keys_are_nearer_to_the_float_model(device: htp.Device, native: bool) -> None:
    model, text, errors = attentive(), TEXT * 10, []
    exact, wide = model.forward(text)[0], ("output", "down", "gate", "up")
    # Only where weights are rounded with care are keys mixed.
    for rounding in ("nearest", "compensated"):
        options = {"calibration": text, "rounding": rounding, "wide": wide, "native_kv": native}
        bundle = llm.export(model, ar=(32,), context=CONTEXT, **options)  # type: ignore[arg-type]
        assert (b"layers.0.k_mix" in bundle.binaries[0]) == (rounding == "compensated")
        with llm.Generator(bundle, device) as chat:
            errors.append(np.square(asyncio.run(chat.score(text)) - exact).mean())
    assert errors[1] < 0.95 * errors[0]
