"""Descriptors that belong to somebody from the first moment to the last, whatever interrupts come in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from os import close


class Descriptor:
    """Owns a descriptor, which is closed with it, or when it is dropped."""

    __slots__ = ("_held",)

    def __init__(self, make: Callable[..., int], *arguments: object) -> None:
        """``make(*arguments)`` opens it, and is a function in C."""
        self._held: list[int] = []
        # One call into C: the descriptor is in the list before an interrupt can come.
        self._held.extend(map(make, *([argument] for argument in arguments)))

    @property
    def number(self) -> int:
        """The descriptor itself; -1 when it is closed."""
        return self._held[0] if self._held else -1

    def close(self) -> None:
        """Close it. Again does nothing."""
        try:
            # Likewise: taken out of the list and closed by one call, so that no other's is closed by the next.
            deque(map(close, iter(self._held.pop, None)), maxlen=0)
        except (AttributeError, IndexError):  # it was closed before, or interrupted before there was anything
            return

    __del__ = close
