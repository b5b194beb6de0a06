"""The benchmark of language models: the plain loop writes what we write, and every figure is shown."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

import openhtp as htp
from openhtp import llm
from openhtp.bench import language
from openhtp.bench.language import PlainLoop
from openhtp.cli.bench import language_sheet


def test_the_plain_loop_computes_the_same_model() -> None:
    tiny = llm.Llama(layers=2, hidden=64, heads=2, kv_heads=1, head_dim=64, vocab=96, ffn=96, context=256)
    bundle = llm.export(tiny, ar=(1,), native_kv=False)
    prompt = [int(token) for token in np.random.default_rng(3).integers(0, 96, 20)]
    plain = PlainLoop(bundle)
    assert plain.decode_ms(prompt, 12) > 0
    with htp.Backend() as backend, llm.Generator(bundle, backend.create_device(soc="SM8650")) as chat:
        written = chat.complete(prompt, max_new=12)
    assert plain.written[:12] == written


@pytest.mark.slow
def test_all_is_measured() -> None:
    *_, result = language.run(rounds=1, samples=10, memory=False)
    assert isinstance(result, language.LanguageResult)
    assert result.tokens_per_s > 0
    assert result.times_plain > 0
    assert 0 < result.binary_ratio <= 1.15
    assert result.prefill_steps > 4
    assert result.urgent_wait_ms_p99 >= result.urgent_wait_ms_p50 > 0


@pytest.mark.slow
def test_three_graphs_have_the_weights_of_one() -> None:
    *_, found = language.measure_weight_memory(1024)
    assert isinstance(found, language.WeightMemory)
    assert found.one_bytes > 0.9 * found.weights
    # Their own copies would make it two or three.
    assert found.ratio < 1.5


def test_every_figure_is_shown() -> None:
    result = language.LanguageResult(update_us={512: 10.0, 8192: 11.0}, times_plain=0.73, urgent_share_p99=0.09)
    result.weights = language.WeightMemory(weights=47_000_000, one_bytes=94_000_000, three_bytes=98_700_000)
    console = Console(width=120, file=io.StringIO())
    console.print(language_sheet(result).fitted(console))
    text = console.file.getvalue()
    for words in ("0.73x", "9.0%", "11 us (context 8192)", "measured, wall clock", "94 MB, 99 MB", "1.05x"):
        assert words in text
