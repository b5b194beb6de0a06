"""Lowering of ops that move values without computing: on stored integers when the encoding stays the same."""

from __future__ import annotations

from collections.abc import Callable

from openhtp.ops._emit import Emitter


def move(e: Emitter, emit: Callable[[str], str]) -> None:
    """Apply ``emit`` to input 0 in the cheapest form that is exact, and put the result."""
    if e.same_encoding():
        e.put_stored(0, emit(e.stored(0)))
    else:
        e.put(0, emit(e.value(0)))
