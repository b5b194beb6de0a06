"""The marks that every picture is made of. Times are integer nanoseconds of one clock.

A mark lies in a *lane* (one line of a picture: a client, an HVX thread) of a *group* (a heading).
"""

from __future__ import annotations

from msgspec import Struct

Args = dict[str, str | int | float | bool]


class TimelineSpan(Struct, frozen=True, kw_only=True):
    """Something that took time. ``category`` says of what kind (``running``, ``waiting``, ``vtcm``...)."""

    lane: str
    name: str
    start_ns: int
    duration_ns: int
    category: str = ""
    group: str = ""
    args: Args | None = None

    @property
    def end_ns(self) -> int:
        """When it was over."""
        return self.start_ns + self.duration_ns


class Instant(Struct, frozen=True, kw_only=True):
    """Something that happened at a moment."""

    lane: str
    name: str
    at_ns: int
    category: str = ""
    group: str = ""
    args: Args | None = None


class Counter(Struct, frozen=True, kw_only=True):
    """Values that hold from this moment on, drawn stacked."""

    name: str
    at_ns: int
    values: dict[str, int | float]
    group: str = ""


class Flow(Struct, frozen=True, kw_only=True):
    """An arrow from a moment in one lane to a moment in another: who made way for whom."""

    name: str
    number: int
    from_lane: str
    from_ns: int
    to_lane: str
    to_ns: int
    from_group: str = ""
    to_group: str = ""


Mark = TimelineSpan | Instant | Counter | Flow
