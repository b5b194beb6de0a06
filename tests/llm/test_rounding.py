"""Even keys and values, and weights that make up for each other: the same model, nearer to it in 8 bits."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp import llm
from openhtp.core.errors import InvalidArgument
from openhtp.llm.balancing import Extent
from openhtp.llm.model import KEY_CENTRE, Thin
from openhtp.llm.quantizing import Levels, calibrate, calibration_windows, made_up_for

CONTEXT = 256
TEXT = [3, 90, 17, 17, 4, 60, 8, 33, 71, 2, 45, 12]


def uneven() -> llm.Llama:
    """A model with a few large channels in its keys and values, as trained ones have them."""
    model = llm.Llama(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=64, vocab=96, ffn=96, context=256)
    for layer in (0, 1):
        model.weights[f"layers.{layer}.wk"][[3, 70]] *= 20
        model.weights[f"layers.{layer}.wv"][[5, 100]] *= 20
    return model


def seen(model: llm.Llama, *, centred: bool = True) -> Extent:
    extent = Extent(model, CONTEXT, centred=centred)
    model.forward(TEXT, watch=extent.watch())
    return extent


def largest(extent: Extent, name: str) -> np.ndarray:
    low, high = extent.span(name)
    sizes = np.maximum(-low, high)
    # One of a pair of keys may be the smaller one by far.
    return sizes if name.endswith("value") else np.maximum(*np.split(sizes, 2, axis=1))


@pytest.mark.parametrize("centred", [False, True])
def test_a_balanced_model_computes_the_same_with_even_keys_and_values(centred: bool) -> None:
    model = uneven()
    before = seen(model, centred=centred)
    balance = before.balance(model).with_even_columns(model)
    even = balance.of_model(model)
    np.testing.assert_allclose(shares(even), shares(model), atol=1e-5)
    assert (f"layers.0.{KEY_CENTRE}" in even.weights) == centred
    after = seen(even, centred=centred)
    for name in ("layers.0.key", "layers.0.value", "layers.1.key", "layers.1.value"):
        sizes = largest(after, name)
        # The keys of each place are turned from centred ones here, so some centres are seen turned.
        if not centred or name.endswith("value"):
            assert sizes.max() / sizes.min() < 1.3
        assert largest(before, name).max() / np.median(largest(before, name)) > 8


def shares(model: llm.Llama) -> np.ndarray:
    logits = model.forward(TEXT)[0].astype(np.float64)
    power = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(power / power.sum(axis=-1, keepdims=True))


def test_a_centre_makes_the_range_of_constant_keys_small_in_every_place() -> None:
    model = uneven()
    # The slowest pair of each head, far from zero in one direction: it hardly turns within the context.
    model.config = dataclasses.replace(model.config, biases=("wk",))
    for layer in (0, 1):
        bias = np.zeros(128, np.float32)
        bias[[31, 63, 95, 127]] = 400.0
        model.weights[f"layers.{layer}.wk_bias"] = bias
    plain, centred = (seen(model, centred=centred).balance(model) for centred in (False, True))
    assert centred.of_model(model).forward(TEXT)[0] == pytest.approx(model.forward(TEXT)[0], abs=2e-3)
    steps = []
    for balance in (plain, centred):
        even = balance.of_model(model)
        keys = even.forward(TEXT * (CONTEXT // len(TEXT)))[1].keys[0]
        low, high = balance.key_ranges["layers.0.key"]
        assert low * 1.05 < keys.min(), "in every place"
        assert keys.max() < high * 1.05
        steps.append(high / balance.rows["layers.0.wk"][31])  # of the slow pair, in the model's own terms
    assert steps[1] < steps[0] / 4


def test_bounded_scores_have_no_centre() -> None:
    model = llm.Llama(layers=1, hidden=64, heads=2, kv_heads=1, head_dim=64, vocab=96, ffn=96, attention_cap=30.0)
    assert not seen(model).balance(model).constants


def test_adapters_are_balanced_with_their_weights() -> None:
    model, rng = uneven(), np.random.default_rng(0)
    balance = seen(model).balance(model).with_even_columns(model)
    sizes = {"wq": (256, 64), "wk": (128, 64), "wv": (128, 64), "wo": (64, 256), "up": (96, 64), "down": (64, 96)}
    added = {
        f"layers.1.{name}": Thin(
            rng.normal(size=(4, columns)).astype(np.float32), 0.1 * rng.normal(size=(rows, 4)).astype(np.float32)
        )
        for name, (rows, columns) in sizes.items()
    }
    other = {name: balance.of_thin(name, thin) for name, thin in added.items()}
    expected, _ = model.forward(TEXT, added=added)
    found, _ = balance.of_model(model).forward(TEXT, added=other)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert np.abs(expected - model.forward(TEXT)[0]).max() > 0.1


def test_errors_of_some_weights_make_up_for_those_of_others() -> None:
    rng = np.random.default_rng(0)
    # Inputs that go together, as they do in a text.
    inputs = rng.normal(size=(2000, 40)) @ rng.normal(size=(40, 160)) + 0.3 * rng.normal(size=(2000, 160))
    weights = rng.normal(0, 2, (32, 160)).astype(np.float32)
    found = made_up_for(weights, inputs.T @ inputs, 7, 0.01)
    assert np.array_equal(found, np.rint(found))
    assert np.abs(found).max() <= 7

    def error(steps: np.ndarray) -> float:
        return float(np.square(inputs @ (steps - weights).T).mean())

    assert error(found) < 0.4 * error(np.clip(np.rint(weights), -7, 7))


def test_without_moments_weights_are_rounded_to_the_nearest(tiny: llm.Llama) -> None:
    stored, quant = Levels(tiny, {}, 0).of("layers.0.up", 8)
    scales = np.array(quant.scales)[:, None]
    assert np.abs(stored * scales - tiny.weights["layers.0.up"]).max() <= scales.max() / 2 + 1e-7


def test_moments_are_those_of_what_is_multiplied(tiny: llm.Llama) -> None:
    windows = calibration_windows(tiny, TEXT, 8)
    assert [len(ids) for ids in windows] == [8, 4]
    seen = calibrate(tiny, windows, moments=True)
    assert seen.tokens == len(TEXT)
    assert seen.moments["norm_out"].shape == (64, 64)
    assert seen.moments["layers.1.inner"].shape == (96, 96)
    assert set(calibrate(tiny, windows, moments=False).moments) == set()


def test_texts_abreast_are_texts_of_their_own(tiny: llm.Llama) -> None:
    one, other, past = TEXT[:5], TEXT[5:10], None
    for pair in zip(one, other, strict=True):
        logits, past = tiny.forward(pair, past, abreast=True)
    for row, text in enumerate((one, other)):
        np.testing.assert_allclose(logits[row], tiny.forward(text)[0][-1], atol=1e-4)


def test_an_unknown_rounding_is_refused(tiny: llm.Llama) -> None:
    with pytest.raises(InvalidArgument, match="rounding is 'best'; expected nearest, compensated"):
        llm.export(tiny, rounding="best")


def test_two_halves_have_steps_that_are_twelve_times_smaller(tiny: llm.Llama) -> None:
    (high, coarse), (low, fine) = Levels(tiny, {}, 0).halves_of("output")
    whole = high * np.array(coarse.scales)[:, None] + low * np.array(fine.scales)[:, None]
    assert np.abs(whole - tiny.weights["output"]).max() <= 0.51 * max(fine.scales)
    assert max(fine.scales) < max(coarse.scales) / 12


@pytest.mark.parametrize(
    "others", [{}, {"logit_cap": 30.0}, {"biases": ("down",)}], ids=["plain", "capped", "with a bias"]
)
def test_wide_weights_are_nearer_to_the_float_model(device: htp.Device, others: dict[str, Any]) -> None:
    sizes = {"layers": 1, "hidden": 64, "heads": 1, "kv_heads": 1, "head_dim": 64, "vocab": 96, "ffn": 96}
    model = llm.Llama(**sizes, context=256, **others)
    # One large column, so that the steps of all rows are large; nothing is multiplied with it.
    model.weights["output"][:, 7] *= 40
    model.weights["norm"][7] = 0.0
    model.weights["layers.0.down"][:, 7] *= 40
    model.weights["layers.0.up"][7] = 0.0
    if "layers.0.down_bias" in model.weights:
        model.weights["layers.0.down_bias"] += 1.0
    exact, errors = model.forward(TEXT)[0], {}
    for wide in ((), ("output",), ("output", "down")):
        bundle = llm.export(model, ar=(4, 1), calibration=TEXT, rounding="nearest", precision="w8a16", wide=wide)
        with llm.Generator(bundle, device) as chat:
            errors[wide] = np.sqrt(np.mean((asyncio.run(chat.score(TEXT)) - exact) ** 2))
    assert errors["output",] < errors[()] * 0.8
    assert errors["output", "down"] < errors["output",] / 2


@pytest.mark.parametrize("wide", [("input",), "output,down", "all", 3])
def test_other_wide_weights_are_refused(tiny: llm.Llama, wide: Any) -> None:
    with pytest.raises(InvalidArgument, match="auto, none or some of wq, wk, wv, wo, gate, up, down, output"):
        llm.export(tiny, wide=wide)
