"""The small Llama as bundles that Genie runs: native, flat, with Concat, in two parts, with embedded tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from openhtp import llm

AUSTEN = Path(__file__).parents[2] / "examples" / "llm" / "austen"
PROMPT = "It was a fine"
# Text enough to find ranges with, and quick.
CALIBRATION = list(range(1, 400))

_OPTIONS = {
    "native": {},
    "flat": {"native_kv": False},
    "concat": {"concat_kv": True},
    "parts2": {"parts": 2},
    "embedded": {"parts": 2, "embedding_input": True},
}


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    model = llm.load(AUSTEN)
    return {
        name: llm.export(model, ar=(32, 1), rounding="nearest", calibration=CALIBRATION, **options).save(
            folder / name
        )
        for name, options in _OPTIONS.items()
    }


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without meaning, with a tokenizer: for what is found before Genie is asked."""
    model = llm.Llama(layers=1, hidden=64, heads=1, kv_heads=1, head_dim=64, vocab=1024, ffn=64, context=256)
    folder = llm.export(model, ar=(1,), rounding="nearest").save(tmp_path_factory.mktemp("tiny") / "bundle")
    (folder / "tokenizer.json").write_bytes((AUSTEN / "tokenizer.json").read_bytes())
    return folder
