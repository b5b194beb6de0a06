"""Rates of language models: published ones are met by fits that had not seen them."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from llm_fit import fitted_rates, left_out, published
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.cost.llm import PRESETS, LlmShape, estimate_llm, llm_rates


def test_models_left_out_in_turn_are_met() -> None:
    rows = left_out(clones=False)
    assert len(rows) == len(published()) == 44
    assert statistics.median(abs(row.decode) for row in rows) <= 0.10
    assert statistics.median(abs(row.first) for row in rows) <= 0.20


def test_what_is_printed_leaves_out_clones_too() -> None:
    found = estimate_llm("llama-3.2-3b")
    assert found.decode_error == pytest.approx(statistics.median(abs(row.decode) for row in left_out()))
    assert 0.05 < found.decode_error <= 0.10
    assert 0.05 < found.ttft_error < 0.20


def test_the_package_has_the_rates_of_this_fit() -> None:
    fitted, kept = fitted_rates(), llm_rates()
    assert kept.decode_error == pytest.approx(fitted.decode_error)
    assert kept.ttft_error == pytest.approx(fitted.ttft_error)
    for line, again in ((kept.token, fitted.token), (kept.single, fitted.single)):
        assert line.work is again.work
        assert line.factors == pytest.approx(again.factors), "run tools/llm_fit.py"
        assert line.slower == pytest.approx(again.slower)
        assert line.unit_ms == pytest.approx(again.unit_ms)


def test_known_sizes() -> None:
    # Weights and a cache of 4096 tokens: 0.82, 2.04 and 4.28 GB, as the models' cards add up to.
    shapes = [PRESETS[name] for name in ("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b")]
    read = [(shape.weight_bytes("w4a16") + shape.kv_bytes(4096)) / 1e9 for shape in shapes]
    assert read == pytest.approx([0.82, 2.04, 4.28], rel=0.03)
    assert PRESETS["llama-3.2-1b"].scores(10) == 16 * 32 * 10


def test_a_longer_context_takes_longer() -> None:
    short, long = (estimate_llm("llama-3.1-8b", context=context) for context in (1024, 16384))
    assert short.tokens_per_s > 1.2 * long.tokens_per_s
    assert short.bound_by == "weights"
    assert estimate_llm("llama-3.2-1b", context=32768).bound_by == "attention"


def test_an_estimate_grows_as_it_should() -> None:
    small, large = estimate_llm("llama-3.2-1b"), estimate_llm("llama-3.1-8b")
    assert small.tokens_per_s > large.tokens_per_s
    assert small.tokens_per_s_low < small.tokens_per_s < small.tokens_per_s_high
    assert estimate_llm("llama-3.2-1b", prompt=512).ttft_ms == pytest.approx(4 * small.ttft_ms)
    assert estimate_llm("llama-3.2-1b", accepted=2.0).tokens_per_s == pytest.approx(2 * small.tokens_per_s)
    assert small.pass_of(1) == small.pass_of(2) == small.decode_ms
    assert small.pass_of(128) == small.pass_ms
    shape = LlmShape(layers=4, hidden=256, heads=4, kv_heads=2, head_dim=64, ffn=768, vocab=1024)
    assert estimate_llm(shape, "SM8750", context=1024).tokens_per_s > small.tokens_per_s
    assert not estimate_llm("llama-3.2-1b", "SM8550").fitted


def test_a_native_cache_gains_the_more_the_longer_the_context_is() -> None:
    for soc in ("SM8650", "SM8750", "SM8550"):
        rates, firsts, energies = [], [], []
        for context in (1024, 4096, 16384):
            flat, native = (estimate_llm("llama-3.2-3b", soc, context=context, kv=kv) for kv in ("flat", "native"))
            rates.append(native.tokens_per_s / flat.tokens_per_s)
            firsts.append(flat.ttft_ms / native.ttft_ms)
            energies.append(flat.token_energy_pj / native.token_energy_pj)
            low, high = flat.native_gain_ms
            assert low / 3 < flat.decode_ms - native.decode_ms < high
        for gains in (rates, firsts, energies):
            assert 1.002 < gains[0] < gains[1] < gains[2] < 2, soc


def test_flat_is_what_was_published() -> None:
    found, shape = estimate_llm("llama-3.2-3b", context=4096), PRESETS["llama-3.2-3b"]
    assert found.kv == "flat"
    assert found.decode_ms == pytest.approx(llm_rates().decode_ms(shape, "SM8750", "w4a16", 4096))
    assert found.pass_ms == pytest.approx(llm_rates().pass_ms(shape, "SM8750", "w4a16", 4096))


def test_a_masked_softmax_gains_the_more_the_fewer_places_are_valid() -> None:
    added = estimate_llm("llama-3.2-3b", context=8192)
    whole, some, few = (
        estimate_llm("llama-3.2-3b", context=8192, masked_softmax=True, valid=valid) for valid in (None, 4096, 256)
    )
    assert added.ttft_ms == pytest.approx(whole.ttft_ms)
    assert whole.ttft_ms > 1.05 * some.ttft_ms
    assert some.ttft_ms > 1.05 * few.ttft_ms
    assert whole.tokens_per_s < some.tokens_per_s < few.tokens_per_s


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "gpt-9"}, "expected one of llama-3.2-1b"),
        ({"precision": "w2"}, "expected one of w4a16, w8a16, w4fp16"),
        ({"prompt": 5000}, "does not fit a context of 4096"),
        ({"context": 0}, "context is 0"),
        ({"accepted": 0.5}, "expected 1 or more"),
        ({"soc": "SM1"}, "SM1"),
        ({"kv": "round"}, "expected flat or native"),
        ({"valid": 10}, "for a masked softmax alone"),
        ({"valid": 0, "masked_softmax": True}, "expected 1 to 4096 tokens"),
    ],
)
def test_bad_questions(options: dict[str, Any], words: str) -> None:
    with pytest.raises(QnnError, match=words):
        estimate_llm(**{"model": "llama-3.2-1b", **options})
    assert issubclass(InvalidArgument, QnnError)
