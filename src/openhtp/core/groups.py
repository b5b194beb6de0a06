"""How a context says that it shares buffers with others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRegistration:
    """``first`` is the context that began the group, None to begin one.

    ``max_spill_fill_buffer`` is the size in bytes of the one buffer that all graphs of the group use in turn: what
    the largest of them needs. Who joins may leave it out, or repeat it.
    """

    max_spill_fill_buffer: int = 0
    first: object = None
