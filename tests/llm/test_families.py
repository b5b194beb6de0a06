"""Checkpoints of other families than Llama: logits of the ``transformers`` package, in float and on a device."""

from __future__ import annotations

import asyncio
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp import llm
from openhtp.core.errors import BadModel, InvalidArgument, QnnError, UnsupportedFeature
from openhtp.llm.config import config_from
from tests.llm.test_checkpoint import HF, write
from tests.llm.transformers_models import CASES, IDS, REFERENCE, computed, weights


@functools.cache
def references() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(REFERENCE.read_text())
    return stored


def loaded(folder: Path, case: str) -> llm.Llama:
    stored = references()[case]
    return llm.load(write(folder, weights(stored["shapes"]), stored["config"]))


def half_step(logits: np.ndarray) -> float:
    """The step of half precision at the largest of some numbers."""
    return float(np.spacing(np.float16(np.abs(logits).max())))


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(tmp_path: Path, case: str) -> None:
    expected = np.array(references()[case]["logits"])
    logits, _ = loaded(tmp_path, case).forward(IDS)
    assert np.abs(logits - expected).max() < half_step(expected) / 8
    assert np.ptp(expected) > 1  # the numbers say something


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_stored_logits_are_what_transformers_computes_today(case: str) -> None:
    pytest.importorskip("transformers")
    now, stored = computed(case), references()[case]
    assert np.allclose(now["logits"], stored["logits"], atol=1e-5)
    assert now["shapes"] == stored["shapes"]


@pytest.mark.parametrize("case", CASES)
def test_the_device_computes_them_in_steps(tmp_path: Path, device: htp.Device, case: str) -> None:
    """16-bit activations and 8-bit weights and caches: as close as a Llama's, and the same likeliest tokens."""
    model = loaded(tmp_path, case)
    exact, _ = model.forward(IDS)
    # No longer than the windows of some; LongRoPE turns by the length that texts may have.
    bundle = llm.export(model, context=64, ar=(8, 1), native_kv=False, calibration=IDS * 4)
    with llm.Generator(bundle, device) as chat:
        logits = asyncio.run(chat.score(IDS))
    error = np.sqrt(np.mean((logits - exact) ** 2)) / np.std(exact)
    assert error < 0.04, error


# Each difference between families on its own, in a model whose heads fit a native cache.
DIFFERENCES: dict[str, dict[str, Any]] = {
    "biases": {"biases": ("wq", "wk", "wv", "wo", "gate", "up", "down")},
    "norms of queries and keys": {"qk_norm": True},
    "norms after blocks": {"post_norms": True},
    "gelu": {"activation": "gelu_tanh", "embed_scale": 8.0},
    "caps": {"attention_cap": 2.0, "logit_cap": 3.0, "attention_scale": 0.2},
}


def random_model(**options: Any) -> llm.Llama:
    sizes = {"layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 64, "vocab": 96, "ffn": 96}
    model = llm.Llama(**sizes, context=256, **options)
    rng = np.random.default_rng(1)
    for weight in model.weights.values():
        if weight.ndim == 1:
            weight += rng.normal(0.0, 0.3, weight.shape).astype(np.float32)
    return model


@pytest.mark.parametrize("options", DIFFERENCES.values(), ids=DIFFERENCES)
@pytest.mark.parametrize("masked_softmax", [None, "C"])
def test_a_native_cache_computes_what_a_flat_one_does(
    device: htp.Device, options: dict[str, Any], masked_softmax: str | None
) -> None:
    model = random_model(**options)
    exact, _ = model.forward(IDS)
    results = []
    for native in (True, False):
        bundle = llm.export(
            model, ar=(32, 1), parts=2, native_kv=native, masked_softmax=masked_softmax, calibration=IDS * 4
        )
        with llm.Generator(bundle, device) as chat:
            results.append(asyncio.run(chat.score(IDS)))
    assert np.array_equal(*results)
    assert np.sqrt(np.mean((results[0] - exact) ** 2)) < 0.04 * np.std(exact)


def test_a_difference_is_kept_in_the_bundle(tmp_path: Path) -> None:
    model = random_model(**DIFFERENCES["caps"], **DIFFERENCES["biases"], qk_norm=True, window=256)
    bundle = llm.export(model, ar=(1,), calibration=IDS)
    assert llm.Bundle.at(bundle.save(tmp_path / "bundle")).config == model.config


def test_keys_of_a_normalized_layer_are_made_even(device: htp.Device) -> None:
    """A norm would undo factors in the matrix before it, so they are in its weights."""
    model = random_model(qk_norm=True)
    model.weights["layers.0.k_norm"][:4] *= 40.0
    exact, _ = model.forward(IDS)
    bundle = llm.export(model, ar=(32, 1), calibration=IDS * 4)
    with llm.Generator(bundle, device) as chat:
        logits = asyncio.run(chat.score(IDS))
    assert np.sqrt(np.mean((logits - exact) ** 2)) < 0.04 * np.std(exact)


def test_heads_of_any_size_get_a_cache_that_fits() -> None:
    sizes = {"layers": 1, "hidden": 96, "heads": 1, "kv_heads": 1, "head_dim": 96, "vocab": 64}
    model = llm.Llama(**sizes, context=300)
    bundle = llm.export(model, ar=(1,), calibration=[1, 2, 3])
    assert not bundle.about.native_kv
    assert bundle.context == 256
    with pytest.raises(InvalidArgument, match="head_dim 96 is no multiple of 64: use flat KV"):
        llm.export(model, ar=(1,), native_kv=True, calibration=[1, 2, 3])


def test_layers_that_see_few_tokens_limit_the_context() -> None:
    model = random_model(window=200)
    assert llm.export(model, ar=(1,), native_kv=False, calibration=[1, 2, 3]).context == 200
    with pytest.raises(InvalidArgument, match="layers that see 200 tokens only"):
        llm.export(model, context=256, calibration=[1, 2, 3])
    with pytest.raises(InvalidArgument, match="a text of 201 tokens"):
        model.forward([1] * 201)


def test_a_long_context_is_not_the_default() -> None:
    model = llm.Llama(layers=1, hidden=64, heads=1, kv_heads=1, head_dim=64, vocab=64, context=131072)
    assert llm.export(model, ar=(1,), calibration=[1, 2, 3]).context == 4096


def named(architecture: str, **changes: Any) -> dict[str, Any]:
    return HF | {"architectures": [architecture]} | changes


def test_what_a_family_leaves_out_of_its_file() -> None:
    gemma = named("GemmaForCausalLM", hidden_act="gelu")
    del gemma["tie_word_embeddings"]
    config = config_from(gemma)
    assert (config.tied, config.activation, config.embed_scale, config.eps) == (True, "gelu_tanh", 8.0, 1e-6)
    qwen = config_from(named("Qwen2ForCausalLM", sliding_window=64, use_sliding_window=False))
    assert (qwen.biases, qwen.window) == (("wq", "wk", "wv"), None)
    assert config_from(named("Qwen3ForCausalLM", use_sliding_window=True, sliding_window=64)).window == 64
    every = ["full_attention"] * 2
    assert config_from(named("MistralForCausalLM", sliding_window=64, layer_types=every)).window is None
    older = config_from(named("Phi3ForCausalLM", rope_scaling={"type": "su", **LONG}))
    assert older.scaling is not None
    assert older.scaling.kind == "longrope"


LONG = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (named("Gemma3ForCausalLM"), UnsupportedFeature, "expected one of LlamaForCausalLM, Mistral"),
        (named("Qwen3MoeForCausalLM"), UnsupportedFeature, "expected one of"),
        ({"architectures": [7]}, UnsupportedFeature, "expected one of"),
        (named("LlamaForCausalLM", hidden_act="gelu"), UnsupportedFeature, "hidden_act is 'gelu'"),
        (named("LlamaForCausalLM", rope_scaling={"rope_type": "dynamic"}), UnsupportedFeature, "'dynamic'"),
        (
            named("Phi3ForCausalLM", partial_rotary_factor=0.75),
            UnsupportedFeature,
            "partial_rotary_factor is 0.75",
        ),
        (named("Phi3ForCausalLM", rope_scaling={"type": "longrope"}), BadModel, "short_factor is None"),
        (named("Phi3ForCausalLM", sliding_window="far"), BadModel, "sliding window is 'far'"),
        (named("Gemma2ForCausalLM", attn_logit_softcapping=-1), BadModel, "attention_cap is -1"),
        (named("Gemma2ForCausalLM", query_pre_attn_scalar=0), BadModel, "query_pre_attn_scalar as 0"),
        (named("LlamaForCausalLM", num_local_experts=8), UnsupportedFeature, "num_local_experts is 8"),
        (named("LlamaForCausalLM", rope_scaling={"type": "linear"}), BadModel, "factor as None"),
    ],
)
def test_what_is_refused(content: dict[str, Any], kind: type[QnnError], words: str) -> None:
    with pytest.raises(kind, match=words):
        config_from(content)


def test_a_fused_matrix_of_another_size_is_named(tmp_path: Path) -> None:
    stored = references()["phi3"]
    name = "model.layers.1.self_attn.qkv_proj.weight"
    shapes = stored["shapes"] | {name: [100, 64]}
    with pytest.raises(BadModel, match=r"qkv_proj.weight' has shape \[100, 64\]; expected \[128, 64\]"):
        llm.load(write(tmp_path, weights(shapes), stored["config"]))
