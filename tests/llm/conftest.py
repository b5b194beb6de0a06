"""A device, the small Llama of the examples, and bundles of a tiny random one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import openhtp as htp
from openhtp import llm

AUSTEN = Path(__file__).parents[2] / "examples" / "llm" / "austen"


@pytest.fixture(scope="session")
def device() -> Iterator[htp.Device]:
    with htp.Backend() as backend:
        yield backend.create_device(soc="SM8650")


@pytest.fixture(scope="session")
def austen() -> llm.Llama:
    return llm.load(AUSTEN)


@pytest.fixture(scope="session")
def tiny() -> llm.Llama:
    return llm.Llama(layers=2, hidden=64, heads=2, kv_heads=1, head_dim=64, vocab=96, ffn=96, context=256)
