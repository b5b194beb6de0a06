"""Native and flat caches bit for bit over hundreds of tokens, and one text however it is computed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp import llm
from tests.llm.conftest import AUSTEN

pytestmark = pytest.mark.slow

CONTEXT = 512
# What a pass of one token still has room for.
LIMIT = CONTEXT - 32
TOKENS = 300
HELD_OUT = [int(token) for token in np.load(AUSTEN / "held_out_tokens.npy")[:2048]]
# A near tie comes after this one, which any other bit decides otherwise.
PROMPT = HELD_OUT[600:750]


@pytest.fixture(scope="module")
def pair(device: htp.Device, tiny: llm.Llama) -> Iterator[tuple[llm.Generator, llm.Generator]]:
    text = [token % 96 for token in HELD_OUT[:256]]
    bundles = [
        llm.export(tiny, ar=(128, 32, 1), context=CONTEXT, native_kv=native, calibration=text)
        for native in (True, False)
    ]
    with llm.Generator(bundles[0], device) as native, llm.Generator(bundles[1], device) as flat:
        yield native, flat


@pytest.mark.parametrize("length", [1, 31, 32, 33, 127, 128, 129, LIMIT - 1, LIMIT])
def test_logits_are_equal_over_300_tokens(pair: tuple[llm.Generator, llm.Generator], length: int) -> None:
    text = [token % 96 for token in HELD_OUT[length : length + LIMIT + 1]]

    async def logits(chat: llm.Generator) -> list[np.ndarray]:
        chat.reset()
        rows = [await chat.score(text[:length])]
        rest = text[length : min(length + TOKENS, LIMIT)]
        return rows + [await chat.score([token]) for token in rest]

    native, flat = (asyncio.run(logits(chat)) for chat in pair)
    assert len(native) == min(TOKENS, LIMIT - length) + 1
    for place, (one, two) in enumerate(zip(native, flat, strict=True)):
        assert np.array_equal(one, two), place


@pytest.fixture(scope="module")
def text(device: htp.Device, austen: llm.Llama) -> list[int]:
    with llm.Generator(llm.export(austen, ar=(128, 32, 1), calibration=HELD_OUT[:512]), device) as chat:
        return list(chat.complete(PROMPT, max_new=48))


@pytest.mark.parametrize(
    ("export", "options"),
    [
        ({"ar": (32, 1)}, {}),
        ({"ar": (1,)}, {}),
        ({"ar": (128, 32, 1), "native_kv": False}, {}),
        ({"ar": (128, 32, 8, 1)}, {"lookahead": 7}),
        ({"ar": (128, 32, 1), "parts": 2}, {"lookahead": 20}),
    ],
    ids=str,
)
def test_the_text_is_the_same(
    device: htp.Device, austen: llm.Llama, text: list[int], export: dict[str, Any], options: dict[str, Any]
) -> None:
    with llm.Generator(llm.export(austen, calibration=HELD_OUT[:512], **export), device, **options) as chat:
        assert chat.complete(PROMPT, max_new=48) == text
        chat.rewind(40)
        assert chat.complete(max_new=40) == text[8:]


def test_the_first_40_greedy_tokens_are_those_of_the_float_model(device: htp.Device, austen: llm.Llama) -> None:
    prompt = [int(token) for token in np.load(AUSTEN / "reference.npz")["ids"]]
    logits, past = austen.forward(prompt)
    expected: list[int] = []
    while len(expected) < 40:
        expected.append(int(logits[-1].argmax()))
        logits, past = austen.forward(expected[-1:], past)
    with llm.Generator(llm.export(austen), device) as chat:
        assert chat.complete(prompt, max_new=40) == expected
