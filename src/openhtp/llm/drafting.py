"""Guessing the next tokens from what was written before: n-grams. A pass then checks all guesses at once."""

from __future__ import annotations

from collections.abc import Sequence


class NgramDraft:
    """Remembers what followed each run of ``length`` tokens, the last time it was there."""

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
        place = self._next.get(tuple(tokens[-length:])) if len(tokens) > length else None
        return [] if place is None else list(tokens[place : place + count])
