"""Other axes for the residual stream: the same model, in which the largest weights of rows are smaller."""

from __future__ import annotations

import numpy as np
import pytest

from openhtp import llm
from openhtp.llm import balancing
from openhtp.llm.adapter import Adapter
from openhtp.llm.balancing import balanced, basis_for
from openhtp.llm.model import Thin
from openhtp.llm.quantizing import Levels

TEXT = [3, 90, 17, 17, 4, 60, 8, 33, 71, 2, 45, 12]
SIZES = {
    "layers": 2,
    "hidden": 64,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 64,
    "vocab": 96,
    "ffn": 96,
    "context": 256,
}


def uneven(**others: object) -> llm.Llama:
    """A model whose norms differ from element to element."""
    model = llm.Llama(**SIZES, **others)  # type: ignore[arg-type]
    rng = np.random.default_rng(1)
    for name, weight in model.weights.items():
        if name.endswith("norm"):
            model.weights[name] = rng.uniform(0.5, 2.0, weight.shape).astype(np.float32)
        elif name.endswith("_bias"):
            model.weights[name] = rng.normal(0.0, 0.1, weight.shape).astype(np.float32)
    return model


BIASES = ("wq", "wk", "wv", "wo", "gate", "up", "down")


@pytest.mark.parametrize(
    "others",
    [{}, {"tied": True}, {"biases": BIASES}, {"qk_norm": True}, {"embed_scale": 8.0, "logit_cap": 30.0}],
    ids=["plain", "tied", "biases", "norms of keys", "caps"],
)
def test_a_turned_model_computes_the_same(others: dict[str, object]) -> None:
    model = uneven(**others)
    basis = basis_for(model)
    assert basis is not None
    turned = basis.of_model(model)
    np.testing.assert_allclose(turned.forward(TEXT)[0], model.forward(TEXT)[0], atol=2e-4)
    assert not np.allclose(turned.weights["embed"], model.weights["embed"], atol=0.01)


def test_the_largest_weights_of_rows_get_smaller() -> None:
    model = uneven()
    basis = basis_for(model)
    assert basis is not None
    turned = basis.of_model(model)

    def largest(weights: np.ndarray) -> float:
        return float(np.square(np.abs(weights).max(axis=1)).mean())

    output = model.weights["output"] * model.weights["norm"]
    assert largest(turned.weights["output"]) < 0.75 * largest(output)
    for name in ("layers.0.down", "layers.1.down"):
        assert largest(turned.weights[name]) < 0.85 * largest(model.weights[name])


def test_steps_of_the_small_llama_get_smaller(austen: llm.Llama) -> None:
    text = [int(token) for token in np.random.default_rng(0).integers(1, 1000, 100)]

    def square_of_steps(rebased: bool) -> dict[str, float]:
        model, _, _ = balanced(austen, [], [], [text], context=256, wide=True, rebased=rebased)
        levels = Levels(model, {}, 0)
        factor = {"output": np.abs(model.weights["norm"]).mean(), "layers.2.down": 1.0}
        return {
            name: float(np.square(np.array(levels.of(name, 8)[1].scales) * factor[name]).mean()) for name in factor
        }

    before, after = square_of_steps(False), square_of_steps(True)
    assert after["layers.2.down"] < 0.7 * before["layers.2.down"]
    assert after["output"] < 0.7 * before["output"]


def test_large_models_keep_their_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancing, "_MOST_WORK", 1e7)
    assert basis_for(uneven()) is None


def test_norms_behind_matrices_keep_their_axes() -> None:
    assert basis_for(uneven(post_norms=True)) is None


def test_adapters_and_runs_are_turned_with_their_weights() -> None:
    model, rng = uneven(), np.random.default_rng(0)
    added = {
        name: Thin(
            rng.normal(size=(4, model.weights[name].shape[1])).astype(np.float32) * 0.1,
            rng.normal(size=(model.weights[name].shape[0], 4)).astype(np.float32) * 0.1,
        )
        for name in model.weights
        if name.startswith("layers.0.") and model.weights[name].ndim == 2
    }
    basis = basis_for(model)
    assert basis is not None
    turned, expected = basis.of_model(model), model.forward(TEXT, added=added)[0]
    np.testing.assert_allclose(turned.forward(TEXT, added=basis.of_run(added))[0], expected, atol=2e-4)
    adapter = basis.of_adapter(Adapter("one", added))
    np.testing.assert_allclose(turned.forward(TEXT, added=adapter.matrices)[0], expected, atol=2e-4)
    assert np.abs(expected - model.forward(TEXT)[0]).max() > 0.01
