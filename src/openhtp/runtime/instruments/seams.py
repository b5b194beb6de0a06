"""Methods that can be led through something else for a while: how faults and the saver come between.

Whoever has no use for either pays nothing: the methods are then those that their classes define.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Seam(NamedTuple):
    """A method, and what makes of it the one that is called instead."""

    owner: type
    name: str
    made: Callable[[Any], Any]


_lock = threading.Lock()
_defined: dict[tuple[type, str], Any] = {}
_opened: list[Seam] = []


def open_seams(seams: Sequence[Seam]) -> None:
    """Lead calls through these; those that were opened last are called first."""
    with _lock:
        _opened.extend(seams)
        _settle(seams)


def close_seams(seams: Sequence[Seam]) -> None:
    """Lead calls past them again; what others have opened meanwhile stays."""
    with _lock:
        for seam in seams:
            _opened.remove(seam)
        _settle(seams)


def any_open() -> bool:
    """Whether something may come between; a way past the methods must then not be taken."""
    return bool(_opened)


def _settle(seams: Sequence[Seam]) -> None:
    for owner, name in {(seam.owner, seam.name) for seam in seams}:
        method = _defined.setdefault((owner, name), getattr(owner, name))
        for seam in _opened:
            if seam.owner is owner and seam.name == name:
                method = seam.made(method)
        setattr(owner, name, method)
