"""The KV cache on the client's side: where tokens are, and how new ones get there.

Tokens lie dense, the first at place 0. A pass puts its new tokens at ``index``, the next multiple of 32;
afterwards they are written behind the others, which costs the same whatever the context is. Behind the tokens, a
pass reads zeros in a native cache; tokens that are taken back are cleared, so a flat cache has zeros there, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from openhtp.core import hmx_layout as hmx
from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import InvalidArgument
from openhtp.llm.config import LlamaConfig
from openhtp.llm.quantizing import KV_ZERO

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class PartCache:
    """Keys [layers, kv_heads, 1, head_dim, context] and values [.., context, head_dim] of one part's layers."""

    begin: int
    keys: Bytes
    values: Bytes

    @property
    def halves(self) -> tuple[tuple[hmx.Side, Bytes], ...]:
        """Keys and values, each with its side."""
        return (hmx.Side.KEY, self.keys), (hmx.Side.VALUE, self.values)


def part_shapes(config: LlamaConfig, layers: int, context: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of a part's keys and values."""
    lead = (layers, config.kv_heads, 1)
    return (*lead, config.head_dim, context), (*lead, context, config.head_dim)


class KvCache:
    """How far a cache is filled. The memory is the generator's; it is replaced when the cache grows or moves."""

    def __init__(self, config: LlamaConfig, parts: Sequence[PartCache], context: int, *, native: bool) -> None:
        self._config = config
        self._native = native
        self._parts = tuple(parts)
        self.context = context
        self.valid = 0
        # Where the next token is in the text, which evicting does not change.
        self.position = 0
        self._wanted_context = context

    @property
    def index(self) -> int:
        """Place at which a pass puts its new tokens."""
        return hmx.round_up(self.valid)

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self._config.kv_bytes(self.context)

    @property
    def wanted_context(self) -> int:
        """The context that ``grow`` asked for; the next pass has it."""
        return self._wanted_context

    def room_for(self, ar: int) -> bool:
        """Whether a pass of ``ar`` tokens fits."""
        return self.index + hmx.round_up(ar) <= self.context

    def write(self, part: int, begin: int, keys: Bytes, values: Bytes, count: int) -> None:
        """Put the first ``count`` new tokens of a part behind others.

        New keys are [layers, kv_heads, 1, head_dim, tokens], new values [.., tokens, head_dim], as graphs give
        them out.
        """
        cached = self._parts[part]
        new = np.ascontiguousarray(keys[..., :count].swapaxes(-1, -2)), values[..., :count, :]
        for (side, cache), tokens in zip(cached.halves, new, strict=True):
            self._put(side, cache, begin, tokens)

    def advance(self, count: int) -> None:
        """Count tokens that were written."""
        self.valid += count
        self.position += count

    def rewind(self, count: int) -> None:
        """Take back the last tokens."""
        number = whole_number(count)
        if number is None or not 0 <= number <= self.valid:
            raise InvalidArgument(f"rewind by {shown(count)}; expected 0 to the {self.valid} tokens in the cache")
        if number:
            self._clear(self.valid - number, self.valid)
            self.valid -= number
            self.position -= number

    def evict(self, count: int, *, keep: int = 0) -> None:
        """Forget the ``count`` tokens behind the first ``keep``; the others move up. Both are multiples of 32.

        Keys keep the positions that they were rotated for, so distances in the text stay true.
        """
        number, kept = whole_number(count), whole_number(keep)
        if number is None or kept is None or number < 0 or kept < 0 or number % hmx.BLOCK or kept % hmx.BLOCK:
            raise InvalidArgument(
                f"evict {shown(count)} tokens behind {shown(keep)}; expected multiples of {hmx.BLOCK}: other"
                " numbers would move every byte of the cache"
            )
        if kept + number > self.valid:
            raise InvalidArgument(f"evict {number} tokens behind {kept}; the cache has {self.valid}")
        if not number:
            return
        for cached in self._parts:
            for side, cache in cached.halves:
                self._put(side, cache, kept, self._get(side, cache, kept + number, self.valid))
        self._clear(self.valid - number, self.valid)
        self.valid -= number

    def grow(self, context: int) -> None:
        """Make room for more tokens from the next pass on; the bundle must have graphs for that context."""
        number = whole_number(context)
        if number is None or number < self.valid:
            raise InvalidArgument(
                f"grow to {shown(context)}; expected at least the {self.valid} tokens in the cache"
            )
        self._wanted_context = number

    def flat(self, side: str, layer: int) -> Bytes:
        """Stored numbers of one layer's tokens, row by row: [kv_heads, tokens, head_dim]; 128 stands for 0."""
        half = hmx.side_of(side)  # type: ignore[arg-type]
        for cached in self._parts:
            if cached.begin <= layer < cached.begin + len(cached.keys):
                cache = cached.keys if half is hmx.Side.KEY else cached.values
                return self._get(half, cache[layer - cached.begin], 0, self.valid)
        raise InvalidArgument(f"layer is {shown(layer)}; expected 0 to {self._config.layers - 1}")

    def move(self, parts: Sequence[PartCache], context: int) -> None:
        """Move all tokens to other memory, perhaps for another context."""
        for old, new in zip(self._parts, parts, strict=True):
            for (side, source), (_, target) in zip(old.halves, new.halves, strict=True):
                if source.shape == target.shape:
                    target[...] = source
                else:
                    self._put(side, target, 0, self._get(side, source, 0, self.valid))
        self._parts, self.context, self._wanted_context = tuple(parts), context, context

    # Either layout

    def _put(self, side: hmx.Side, cache: Bytes, begin: int, tokens: Bytes) -> None:
        count, head_dim = tokens.shape[-2:]
        if not count:
            return
        if self._native:
            hmx.write_tokens(side, cache, begin, tokens)
        elif side is hmx.Side.KEY:
            places = cache.reshape(-1, head_dim, cache.shape[-1])
            places[..., begin : begin + count] = tokens.reshape(-1, count, head_dim).swapaxes(1, 2)
        else:
            rows = cache.reshape(-1, cache.shape[-2], head_dim)
            rows[:, begin : begin + count] = tokens.reshape(-1, count, head_dim)

    def _get(self, side: hmx.Side, cache: Bytes, begin: int, end: int) -> Bytes:
        if self._native:
            return hmx.read_tokens(side, cache, begin, end)
        if side is hmx.Side.KEY:
            keys = cache.reshape(-1, *cache.shape[-2:])[..., begin:end]
            return np.ascontiguousarray(keys.swapaxes(1, 2))
        return cache.reshape(-1, *cache.shape[-2:])[:, begin:end].copy()

    def _clear(self, begin: int, end: int) -> None:
        for cached in self._parts:
            for side, cache in cached.halves:
                heads = cache.size // (self.context * self._config.head_dim)
                self._put(
                    side, cache, begin, np.full((heads, end - begin, self._config.head_dim), KV_ZERO, np.uint8)
                )
