"""Generation: native equals flat, chunks and guesses change nothing, caches rewind, grow and evict."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp import llm
from openhtp.core.errors import DeviceLost, InvalidArgument, OutOfMemory, WrongState
from openhtp.llm.generator import NgramDraft

Make = Callable[..., llm.Generator]


def prompt_of(length: int, vocab: int = 96) -> list[int]:
    return [int(token) for token in np.random.default_rng(length).integers(0, vocab, length)]


@pytest.fixture(scope="module")
def bundles(tiny: llm.Llama) -> dict[bool, llm.Bundle]:
    ar = (64, 32, 4, 1)
    return {native: llm.export(tiny, ar=ar, native_kv=native) for native in (True, False)}


@pytest.fixture(scope="module")
def loaded(device: htp.Device, bundles: dict[bool, llm.Bundle]) -> Iterator[dict[bool, llm.Generator]]:
    """Generators whose graphs the others share: loading takes longer than most of what is tested."""
    made = {native: llm.Generator(bundle, device) for native, bundle in bundles.items()}
    yield made
    for one in made.values():
        one.free()


@pytest.fixture(scope="module")
def make(device: htp.Device, loaded: dict[bool, llm.Generator], bundles: dict[bool, llm.Bundle]) -> Make:
    def another(*, native: bool = True, **options: Any) -> llm.Generator:
        return llm.Generator(bundles[native], device, shares=loaded[native], **options)

    return another


@pytest.mark.parametrize("length", [1, 31, 32, 33, 63, 64, 65, 224])
def test_native_and_flat_have_the_same_logits(make: Make, length: int) -> None:
    found = []
    for native in (True, False):
        with make(native=native) as one:
            scores = asyncio.run(one.score(prompt_of(length)))
            written = one.complete(max_new=8) if length < 224 else []
            caches = [one.cache.flat(side, layer) for side in ("key", "value") for layer in (0, 1)]
            found.append((scores, written, caches))
    (native, text, caches), (flat, other, others) = found
    assert np.array_equal(native, flat)
    assert text == other
    assert all(np.array_equal(one, two) for one, two in zip(caches, others, strict=True))


@pytest.mark.parametrize("chunk", [32, 4, 1])
def test_logits_are_the_same_bits_in_passes_of_any_size(make: Make, chunk: int) -> None:
    """However many tokens a pass has, and wherever its new ones then are."""
    with make() as one, make(chunk=chunk) as other:
        expected, found = (asyncio.run(chat.score(prompt_of(100))) for chat in (one, other))
        assert np.array_equal(found, expected)
        assert one.stats.passes != other.stats.passes


@pytest.fixture(scope="module")
def whole(make: Make) -> list[int]:
    with make() as one:
        return list(one.complete(prompt_of(40), max_new=24))


@pytest.mark.parametrize(
    "options", [{"chunk": 32}, {"chunk": 4}, {"chunk": 1}, {"lookahead": 3}, {"lookahead": 20}]
)
def test_the_text_does_not_depend_on_how_it_is_computed(
    make: Make, whole: list[int], options: dict[str, Any]
) -> None:
    with make(**options) as one:
        assert one.complete(prompt_of(40), max_new=24) == whole
        assert sum(one.stats.passes.values()) >= 1


@pytest.mark.parametrize(("parts", "pattern"), [(1, "A"), (2, "B"), (1, "C")])
def test_parts_masks_and_native_outputs(device: htp.Device, tiny: llm.Llama, parts: int, pattern: str) -> None:
    found = []
    for native, out in ((True, True), (True, False), (False, False)):
        bundle = llm.export(tiny, ar=(32,), parts=parts, native_kv=native, native_out=out, masked_softmax=pattern)
        with llm.Generator(bundle, device) as one:
            found.append(one.complete(prompt_of(35), max_new=6))
    assert found[0] == found[1] == found[2]


def test_rewinding_and_trying_again(make: Make, whole: list[int]) -> None:
    with make() as one:
        assert one.complete(prompt_of(40), max_new=24) == whole
        one.rewind(20)
        assert len(one.tokens) == 44
        assert one.complete(max_new=20) == whole[4:]
        one.reset()
        assert one.cache.valid == one.cache.position == 0
        assert one.complete(prompt_of(40), max_new=24) == whole


def test_a_cache_grows_by_itself_and_when_asked(device: htp.Device, tiny: llm.Llama) -> None:
    bundle = llm.export(tiny, ar=(32, 1), context=(256, 512))
    prompt = prompt_of(300)
    texts = []
    base = llm.Generator(bundle, device)
    for context in (256, 512):
        with llm.Generator(bundle, device, context=context, shares=base) as one:
            texts.append(one.complete(prompt, max_new=6))
            assert one.cache.context == 512
    assert texts[0] == texts[1]
    with base as one:
        one.complete(prompt_of(10), max_new=2)
        one.cache.grow(512)
        one.complete(max_new=2)
        assert one.cache.context == 512
        one.cache.grow(1024)
        with pytest.raises(InvalidArgument, match=r"the context of 256, 512 tokens has no room"):
            one.complete(max_new=2)


def test_evicting_keeps_first_and_last(make: Make) -> None:
    for native in (True, False):
        with make(native=native) as one:
            asyncio.run(one.score(prompt_of(150)))
            before = one.cache.flat("key", 1)
            one.cache.evict(64, keep=32)
            after = one.cache.flat("key", 1)
            assert one.cache.valid == 86
            assert one.cache.position == 150
            assert np.array_equal(after, np.concatenate([before[:, :32], before[:, 96:]], axis=1))
            one.complete([1], max_new=3)
            with pytest.raises(InvalidArgument, match="expected multiples of 32"):
                one.cache.evict(8)
            with pytest.raises(InvalidArgument, match="evict 128 tokens behind 0; the cache has"):
                one.cache.evict(128)


def test_what_began_as_text_goes_on_as_text(device: htp.Device, austen: llm.Llama) -> None:
    bundle = llm.export(austen, ar=(32, 1), context=256, calibration=list(range(64)), rounding="nearest")
    with llm.Generator(bundle, device) as chat:
        whole = chat.complete("It was a fine", max_new=8)
        chat.reset()
        first = chat.complete("It was a fine", max_new=3)
        assert first + chat.complete(max_new=5) == whole
        numbers = chat.complete([5], max_new=2)
        assert all(isinstance(token, int) for token in numbers + chat.complete(max_new=2))


def test_several_sequences_share_graphs(make: Make) -> None:
    async def all_of(chats: list[llm.Generator]) -> list[list[int]]:
        async def collect(chat: llm.Generator, length: int) -> list[int]:
            return [token async for token in chat.generate(prompt_of(length), max_new=8)]

        return await asyncio.gather(*(collect(chat, 10 * n + 5) for n, chat in enumerate(chats)))

    with make() as first:
        others = [make() for _ in range(2)]
        together = asyncio.run(all_of([first, *others]))
        for chat in (first, *others):
            chat.reset()
        alone = [chat.complete(prompt_of(10 * n + 5), max_new=8) for n, chat in enumerate([first, *others])]
        assert together == alone
        for chat in others:
            chat.free()


def test_a_lost_device_is_one_error_and_the_next_call_goes_on(
    bundles: dict[bool, llm.Bundle], whole: list[int]
) -> None:
    with htp.Backend() as backend:
        device = backend.create_device(soc="SM8650")
        one = llm.Generator(bundles[True], device)
        written: list[int] = []

        async def until_killed() -> None:
            async for token in one.generate(prompt_of(40), max_new=24):
                written.append(token)
                if len(written) == 7:
                    os.kill(device.pid, signal.SIGKILL)

        with pytest.raises(DeviceLost, match="the device process went away"):
            asyncio.run(until_killed())
        assert one.cache.valid >= 40
        written += one.complete(max_new=24 - len(written))
        assert written == whole


def test_leaving_in_the_middle_leaves_a_usable_generator(make: Make, whole: list[int]) -> None:
    async def some(chat: llm.Generator) -> list[int]:
        found: list[int] = []
        async for token in chat.generate(prompt_of(40), max_new=24):
            found.append(token)
            if len(found) == 5:
                break
        return found

    with make() as one:
        assert asyncio.run(some(one)) == whole[:5]
        assert one.complete(max_new=19) == whole[5:]


def test_bad_requests_change_nothing(make: Make) -> None:
    with make() as one:
        for prompt, words in (
            ([], "the prompt is empty"),
            (None, "the prompt is empty"),
            ([96], "numbers from 0 to 95"),
            ([1.5], "numbers from 0 to 95"),
            (prompt_of(257), "has no room: 0 are in it, and the prompt has 257"),
            (prompt_of(250), "the last 32 places are for"),
        ):
            with pytest.raises(InvalidArgument, match=words):
                one.complete(prompt)
        with pytest.raises(InvalidArgument, match="max_new is 0"):
            one.complete([1], max_new=0)
        with pytest.raises(InvalidArgument, match="no tokenizer"):
            one.complete("text")
        assert one.tokens == ()
        for options, words in (
            ({"chunk": 5}, "one of the AR graphs: 64, 32, 4, 1"),
            ({"lookahead": 64}, "the largest is AR-64"),
            ({"context": 1024}, "graphs for 256"),
        ):
            with pytest.raises(InvalidArgument, match=words):
                make(**options)

        async def twice() -> None:
            async for _ in one.generate([1], max_new=3):
                async for _ in one.generate([1]):
                    pass

        with pytest.raises(WrongState, match="generating already"):
            asyncio.run(twice())


def test_a_cache_that_does_not_fit_says_what_it_needs(
    make: Make, device: htp.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: htp.Context, nbytes: int, **options: Any) -> None:
        raise OutOfMemory(f"process domain 0 has 1 KiB left, {nbytes} bytes are asked for")

    monkeypatch.setattr(htp.Context, "register_memory", full)
    words = (
        r"KV cache needs 64 KiB \(2 layers x 2 x 1 heads x 64 x 256 tokens\), beside the weights: process domain 0"
    )
    with pytest.raises(OutOfMemory, match=words):
        make()
    monkeypatch.undo()
    with make() as one:
        assert len(one.complete([1], max_new=2)) == 2


def test_sampling_is_repeatable_and_follows_its_limits(make: Make) -> None:
    def text(**options: Any) -> list[int]:
        with make() as one:
            return list(one.complete(prompt_of(12), max_new=12, sampling=llm.Sampling(**options)))

    assert text(temperature=2.0, seed=1) == text(temperature=2.0, seed=1)
    assert text(temperature=2.0, seed=1) != text(temperature=2.0, seed=2)
    assert text(temperature=5.0, top_k=1, seed=3) == text() == text(temperature=5.0, top_p=1e-6, seed=4)
    for bad in ({"temperature": -1}, {"top_p": 0}, {"top_k": -2}):
        with pytest.raises(InvalidArgument, match="expected"):
            llm.Sampling(**bad)


def test_stop_tokens_end_the_text(make: Make, whole: list[int]) -> None:
    with make() as one:
        assert one.complete(prompt_of(40), max_new=24, stop={whole[2]}) == whole[: whole.index(whole[2]) + 1]


def test_ngrams_guess_what_followed_before() -> None:
    draft = NgramDraft()
    assert draft.guess([1, 2, 3, 1, 2], 3) == [3, 1, 2]
    assert draft.guess([1, 2, 3, 1, 2, 9, 1, 2], 2) == [9, 1]
    assert draft.guess([7, 8], 2) == []
    assert draft.guess([], 2) == []


def test_native_outputs_are_refused_where_they_come_as_rows(
    device: htp.Device, tiny: llm.Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = llm.export(tiny, ar=(32, 1), native_out=True)
    monkeypatch.setattr(htp.Backend, "library", Path("libQnnHtp.so"))
    with pytest.raises(htp.UnsupportedFeature, match="without native_out"):
        llm.Generator(bundle, device)
