"""Text generation on a device: prefill in chunks, then token by token, beside other clients of the device."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.checks import items_of, real_number, shown, type_in_words, whole_number
from openhtp.core.enumerations import Priority
from openhtp.core.errors import InvalidArgument, WrongState
from openhtp.core.hmx_layout import round_up
from openhtp.llm.bundle import Bundle
from openhtp.llm.cache import KvCache
from openhtp.llm.loaded import LoadedBundle, Sequencer
from openhtp.llm.tokenizer import Streamer, Tokenizer
from openhtp.runtime.objects.device import Device

_QUEUE_DEPTH = 8


@dataclass(slots=True)
class Stats:
    """Measured on this machine, for the last call of ``generate``."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    ttft_ms: float = 0.0
    tokens_per_s: float = 0.0
    passes: dict[int, int] = field(default_factory=dict)
    kv_update_us: float = 0.0
    accepted_per_pass: float = 0.0


class Generator:
    """A bundle on a device, and one sequence of tokens.

    ``generate`` goes on from the tokens so far: a chat keeps its cache between calls. A call that fails, for
    instance because the device was lost, leaves the tokens so far; the next call goes on with them.
    """

    def __init__(
        self,
        bundle: Bundle,
        device: Device,
        *,
        priority: Priority | str | int = Priority.NORMAL,
        chunk: int | str = "auto",
        context: int | None = None,
        lookahead: int = 0,
        adapter: str | None = None,
        shares: Generator | None = None,
    ) -> None:
        """Load a bundle.

        Args:
            bundle: what ``export`` made, or ``Bundle.at`` read.
            device: where it runs.
            priority: of all its passes.
            chunk: most tokens of a prefill pass, or ``"auto"``: a smaller pass blocks others for less long.
            context: the size of the cache to begin with; the bundle's smallest unless given.
            lookahead: how many tokens to guess (from n-grams) and check in one pass; the text stays the same.
            adapter: one of the bundle's LoRA adapters, by name.
            shares: another generator of the same bundle, whose graphs are used, too; adapters stay apart.
        """
        _check_kind("bundle", bundle, Bundle, "what llm.export or llm.Bundle.at returns")
        _check_kind("device", device, Device, "a device, as Backend.create_device returns it")
        if shares is not None:
            _check_kind("shares", shares, Generator, "another Generator, or None")
        self._bundle = bundle
        self._device = device
        self._priority = Priority.parse(priority)
        self._chunk = _checked_chunk(chunk, bundle)
        self._lookahead = _checked_lookahead(lookahead, bundle)
        self._adapter = _checked_adapter(adapter, bundle)
        start = bundle.contexts[0] if context is None else whole_number(context)
        if start is None or start not in bundle.contexts:
            raise InvalidArgument(
                f"context is {shown(context)}; the bundle has graphs for {', '.join(map(str, bundle.contexts))}"
            )
        self._loaded: LoadedBundle = self._load() if shares is None else shares._loaded
        self._owner = shares is None
        self._sequencer = Sequencer(self._loaded, None, start, self._adapter)
        self._cache = self._sequencer.cache
        self._tokens: list[int] = []
        self._draft = NgramDraft()
        self._busy = False
        self._in_text = False
        self._tokenizer: Tokenizer | None = None
        self.stats = Stats()

    def _load(self) -> LoadedBundle:
        return LoadedBundle(self._bundle, self._device, priority=self._priority, queue_depth=_QUEUE_DEPTH)

    @property
    def cache(self) -> KvCache:
        """The KV cache. Rewinding or evicting it changes what the next pass sees."""
        return self._cache

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens so far: prompts and generated tokens."""
        return tuple(self._tokens)

    @property
    def tokenizer(self) -> Tokenizer:
        """The bundle's tokenizer."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.of(self._bundle.tokenizer, self._bundle.config.vocab)
        return self._tokenizer

    @property
    def adapter(self) -> str | None:
        """The adapter that passes run with."""
        return self._adapter

    def use_adapter(self, name: str | None) -> None:
        """Run with another adapter of the bundle, or with none, from the next pass on.

        The cache keeps its tokens, which were computed with the adapter before. ``reset`` begins anew.
        """
        self._adapter = self._sequencer.adapter = _checked_adapter(name, self._bundle)

    def graph_steps(self, ar: int) -> int:
        """The number of steps of a pass of ``ar`` tokens; after each of them other clients may go first."""
        parts = range(self._bundle.parts)
        return sum(self._loaded.graph(ar, part, self._cache.context).steps for part in parts)

    def compiled(self) -> Bundle:
        """The bundle with what the device made of its graphs: on such a device it loads in a fraction of the time.

        Only of a generator without an adapter: applying one changes the graphs.
        """
        if self._adapter is not None:
            raise WrongState(f"the graphs have the adapter {self._adapter!r}; make a generator without one")
        return dataclasses.replace(
            self._bundle, binaries=[context.get_binary() for context in self._loaded.contexts]
        )

    @property
    def was_prepared(self) -> bool:
        """Whether all graphs were ready quickly, because an earlier device had prepared them."""
        return all(graph.was_prepared for context in self._loaded.contexts for graph in context.graphs.values())

    def rewind(self, count: int) -> None:
        """Take back the last tokens of the text, those in the cache included."""
        number = whole_number(count)
        if number is None or not 0 <= number <= len(self._tokens):
            raise InvalidArgument(f"rewind by {shown(count)}; expected 0 to the {len(self._tokens)} tokens so far")
        kept = len(self._tokens) - number
        gone = self._cache.position - kept
        if gone > 0:
            self._cache.rewind(gone)
        del self._tokens[kept:]

    def reset(self) -> None:
        """Forget all tokens."""
        self._cache.rewind(self._cache.valid)
        self._cache.position = 0
        self._tokens.clear()

    async def generate(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        max_new: int = 64,
        sampling: Sampling | None = None,
        stop: Collection[int] = (),
    ) -> AsyncIterator[Any]:
        """Write up to ``max_new`` tokens after the prompt: text gives text, token numbers give numbers.

        Without a prompt, it goes on where the last call ended or failed, in text if that call wrote text. A token
        in ``stop`` ends the generation and is yielded, too.
        """
        ids = self._ids(prompt)
        how = Sampling() if sampling is None else sampling
        most = _checked_most(max_new)
        if self._busy:
            raise WrongState("this generator is generating already; make another with shares=, or await its end")
        fresh = self._tokens[self._cache.position :]
        if not ids and not self._tokens:
            raise InvalidArgument("the prompt is empty, and nothing was written before; expected a token")
        if not ids and not fresh:
            # All tokens are in the cache, but the last one has to run again for the token that follows it.
            self._cache.rewind(1)
            fresh = self._tokens[-1:]
        self._check_room(len(fresh) + len(ids))
        self._busy = True
        # From here on the generator has the prompt: if it fails to run, the next call still has it.
        self._tokens += ids
        if prompt is not None:
            self._in_text = isinstance(prompt, str)
        try:
            streamer = Streamer(self.tokenizer, self._tokens) if self._in_text else None
            async for token in self._written(most, how, stop):
                if streamer is None:
                    yield token
                elif text := streamer.add(token):
                    yield text
        finally:
            self._busy = False

    def complete(self, prompt: str | Sequence[int] | None = None, **options: Any) -> Any:
        """``generate`` without asyncio: the whole text, or all token numbers, at the end."""

        async def collect() -> list[Any]:
            return [part async for part in self.generate(prompt, **options)]

        pieces = asyncio.run(collect())
        return "".join(pieces) if self._in_text else pieces

    async def score(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Real logits [tokens, vocab] of tokens that follow those so far; they are kept as if generated."""
        ids = self._ids(tokens)
        fresh = self._tokens[self._cache.position :]
        self._check_room(len(fresh) + len(ids))
        self._tokens += ids
        rows = [logits async for logits in self._prefill(every=True)]
        return np.concatenate(rows)[len(fresh) :]

    def free(self) -> None:
        """Give back memory and, unless others share them, graphs."""
        self._sequencer.free()
        if self._owner:
            self._loaded.free()

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    # Writing

    async def _written(self, most: int, how: Sampling, stop: Collection[int]) -> AsyncIterator[int]:
        began, chance = time.perf_counter(), how.generator()
        stats = self.stats = Stats(prompt_tokens=len(self._tokens) - self._cache.position)
        self._sequencer.kv_update_ns = 0
        rows = [logits async for logits in self._prefill()]
        ready = [choose(rows[-1][-1], how, chance)]
        first = time.perf_counter()
        stats.ttft_ms = (first - began) * 1e3
        checks = 0
        while True:
            for token in ready:
                self._tokens.append(token)
                stats.new_tokens += 1
                now = time.perf_counter()
                if stats.new_tokens > 1:
                    stats.tokens_per_s = (stats.new_tokens - 1) / (now - first)
                passes = max(1, sum(stats.passes.values()))
                stats.kv_update_us = self._sequencer.kv_update_ns / 1e3 / passes
                stats.accepted_per_pass = (stats.new_tokens - 1) / checks if checks else 0.0
                yield token
                if stats.new_tokens == most or token in stop:
                    return
            ready = await self._next(how, chance)
            checks += 1

    async def _next(self, how: Sampling, chance: np.random.Generator) -> list[int]:
        """The tokens that one more pass confirms."""
        fresh = self._tokens[self._cache.position :]
        guesses = []
        if self._lookahead and how.is_greedy:
            guesses = self._draft.guess(self._tokens, self._lookahead)
        ar = self._fitting(len(fresh) + len(guesses))
        if ar is None or ar < len(fresh) + len(guesses):
            guesses, ar = [], self._fitting(len(fresh))
        if ar is None or ar < len(fresh):
            rows = [logits async for logits in self._prefill()]
            return [choose(rows[-1][-1], how, chance)]
        logits = await self._pass(ar, [*fresh, *guesses])
        chosen = [self._chosen(logits[len(fresh) - 1], how, chance)]
        for index, guess in enumerate(guesses):
            if guess != chosen[-1]:
                break
            chosen.append(self._chosen(logits[len(fresh) + index], how, chance))
        # Guesses that were right are in the cache already; the last token never is.
        self._cache.advance(len(fresh) + len(chosen) - 1)
        return chosen

    async def _prefill(self, *, every: bool = False) -> AsyncIterator[npt.NDArray[np.float32]]:
        """Run all tokens that are not in the cache; logits of the last pass, or of every one."""
        while fresh := self._tokens[self._cache.position :]:
            ar = self._chunk_for(len(fresh))
            part = fresh[:ar]
            logits = await self._pass(ar, part)
            self._cache.advance(len(part))
            if every or len(part) == len(fresh):
                yield self._real(logits if every else logits[-1:])

    async def _pass(self, ar: int, tokens: Sequence[int]) -> npt.NDArray[Any]:
        self._ready(ar)
        logits = await self._sequencer.run(ar, tokens)
        self.stats.passes[ar] = self.stats.passes.get(ar, 0) + 1
        return logits

    def _chosen(self, stored: npt.NDArray[Any], how: Sampling, chance: np.random.Generator) -> int:
        """A token from a row of stored logits; the likeliest has the largest number, stored or real."""
        return int(stored.argmax()) if how.is_greedy else choose(self._real(stored), how, chance)

    def _real(self, stored: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        quant = self._sequencer.logits_encoding
        return (stored.astype(np.float32) + np.float32(quant.offset)) * np.float32(quant.scale)

    # Room and memory

    def _ready(self, ar: int) -> None:
        """Make graphs and memory ready: again if the device was lost, larger if there is no room."""
        lost = any(not context.is_usable for context in self._loaded.contexts) or not self._loaded.contexts
        if lost:
            self._loaded = self._load()
            self._owner = True
        context = self._context_for(ar)
        if lost or context != self._cache.context:
            old = self._sequencer
            self._sequencer = Sequencer(self._loaded, self._cache, context, self._adapter)
            old.free()

    def _context_for(self, ar: int) -> int:
        cache = self._cache
        needed = max(cache.index + round_up(ar), cache.wanted_context)
        if needed <= cache.context and cache.wanted_context == cache.context:
            return cache.context
        larger = next((context for context in self._bundle.contexts if context >= needed), None)
        if larger is None:
            raise self._full(f"a pass of {ar} tokens needs {needed}")
        return larger

    def _full(self, why: str) -> InvalidArgument:
        contexts = ", ".join(map(str, self._bundle.contexts))
        return InvalidArgument(
            f"the context of {contexts} tokens has no room: {self._cache.valid} are in it, and {why}. Rewind,"
            " evict, or export a larger context",
            st.QNN_GRAPH_ERROR_INVALID_TENSOR,
        )

    def _check_room(self, count: int) -> None:
        """Refuse more tokens than the smallest passes have room for."""
        valid, most = self._cache.valid, self._bundle.context
        if valid + count > most:
            raise self._full(f"the prompt has {count}")
        least = self._bundle.ar[-1]
        if round_up(valid + count - 1) + round_up(least) > most:
            raise self._full(
                f"the prompt has {count}; the last {round_up(least)} places are for a pass's new tokens"
            )

    def _chunk_for(self, count: int) -> int:
        """Tokens of the next prefill pass: the largest chunk, or the smallest pass that takes the rest."""
        sizes = [ar for ar in self._bundle.ar if self._has_room(ar) and ar <= self._chunk]
        if not sizes:
            sizes = [ar for ar in self._bundle.ar if self._has_room(ar)]
        if not sizes:
            raise self._full(f"{count} more tokens are to be run")
        return min((ar for ar in sizes if ar >= count), default=sizes[0])

    def _has_room(self, ar: int) -> bool:
        return self._cache.index + round_up(ar) <= self._bundle.context

    def _fitting(self, count: int) -> int | None:
        return min((ar for ar in self._bundle.ar if ar >= count and self._has_room(ar)), default=None)

    def _ids(self, prompt: object) -> list[int]:
        if prompt is None:
            return []
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        numbers = [whole_number(item) for item in items_of(prompt) or ()]
        vocab = self._bundle.config.vocab
        if items_of(prompt) is None or any(number is None or not 0 <= number < vocab for number in numbers):
            raise InvalidArgument(
                f"prompt is {shown(prompt)}; expected text, or token numbers from 0 to {vocab - 1}"
            )
        return [number for number in numbers if number is not None]


def _check_kind(what: str, value: object, kind: type, expected: str) -> None:
    if not isinstance(value, kind):
        raise InvalidArgument(f"{what} is {type_in_words(value)}; expected {expected}")


def _checked_most(max_new: object) -> int:
    most = whole_number(max_new)
    if most is None or most < 1:
        raise InvalidArgument(f"max_new is {shown(max_new)}; expected a number of tokens, at least 1")
    return most


def _checked_chunk(chunk: object, bundle: Bundle) -> int:
    if isinstance(chunk, str) and chunk == "auto":
        return bundle.ar[0]
    number = whole_number(chunk)
    if number is None or number not in bundle.ar:
        sizes = ", ".join(map(str, bundle.ar))
        raise InvalidArgument(f"chunk is {shown(chunk)}; expected 'auto', or one of the AR graphs: {sizes}")
    return number


def _checked_adapter(adapter: object, bundle: Bundle) -> str | None:
    if adapter is None or (isinstance(adapter, str) and adapter in bundle.adapters):
        return adapter
    adapters = (
        ", ".join(map(repr, bundle.adapters)) or "none: export(..., adapters=[...]) makes a bundle with some"
    )
    raise InvalidArgument(f"adapter is {shown(adapter)}; the bundle has {adapters}")


def _checked_lookahead(lookahead: object, bundle: Bundle) -> int:
    number = whole_number(lookahead)
    if number is None or number < 0:
        raise InvalidArgument(f"lookahead is {shown(lookahead)}; expected a number of tokens to guess, or 0")
    if number and number + 1 > bundle.ar[0]:
        raise InvalidArgument(
            f"lookahead is {shown(number)}, one less than a pass checks; the largest is AR-{bundle.ar[0]}"
        )
    return number


# Guessing the next tokens by n-grams from the tokens so far. A pass then checks all guesses at once.


class NgramDraft:
    """Remembers what last followed each run of ``length`` tokens."""

    def __init__(self, length: int = 2) -> None:
        self._length = length
        self._seen = 0
        self._next: dict[tuple[int, ...], int] = {}

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        """Up to ``count`` tokens that may follow; none if the end was never seen before."""
        length = self._length
        if len(tokens) < self._seen:  # some were taken back
            self._seen = 0
            self._next.clear()
        for end in range(max(length, self._seen), len(tokens)):
            self._next[tuple(tokens[end - length : end])] = end
        self._seen = len(tokens)
        start = self._next.get(tuple(tokens[-length:])) if len(tokens) > length else None
        return [] if start is None else list(tokens[start : start + count])


# Choosing the next token.


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen: the likeliest if ``temperature`` is 0, otherwise by chance among the likely ones."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        temperature, share = real_number(self.temperature), real_number(self.top_p)
        if temperature is None or temperature < 0:
            raise InvalidArgument(f"temperature is {shown(self.temperature)}; expected 0 (greedy) or more")
        if share is None or not 0 < share <= 1:
            raise InvalidArgument(f"top_p is {shown(self.top_p)}; expected a share above 0, up to 1")
        most = whole_number(self.top_k)
        if most is None or most < 0:
            raise InvalidArgument(f"top_k is {shown(self.top_k)}; expected 0 (all) or a number of tokens")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest is always taken."""
        return self.temperature == 0

    def generator(self) -> np.random.Generator:
        """The source of chance of one generation."""
        return np.random.default_rng(self.seed)


def choose(logits: npt.NDArray[np.float32], sampling: Sampling, chance: np.random.Generator) -> int:
    """One token from a row of logits."""
    if sampling.is_greedy:
        return int(np.argmax(logits))
    order = np.argsort(-logits, kind="stable")
    if sampling.top_k:
        order = order[: sampling.top_k]
    scaled = logits[order].astype(np.float64) / sampling.temperature
    power = np.exp(scaled - scaled[0])
    share = power / power.sum()
    # The likeliest tokens that together reach top_p.
    kept = int(np.searchsorted(np.cumsum(share), sampling.top_p)) + 1
    share = share[:kept] / share[:kept].sum()
    return int(order[chance.choice(len(share), p=share)])
