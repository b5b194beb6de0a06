"""Every number that a scenario may hold: its unit, and the lowest and highest that make sense.

The one table for the reader and for docs/scheduling.md. Without an upper bound a slip of a few zeros, or the file
of an enemy, would plan for hours or fill the memory.
"""

from __future__ import annotations

from typing import NamedTuple

from openhtp.core.limits import MAX_QUEUE_DEPTH
from openhtp.core.units import GIB, MIB, SECOND

LONGEST_NS = 366 * 24 * 3600 * SECOND
TIME = "time"
"""Stands for the scenario's own unit of time."""


class Range(NamedTuple):
    """What a number counts, and its bounds, which are included. Bounds of times are in nanoseconds."""

    unit: str
    lowest: float
    highest: float
    whole: bool = True


def _time(lowest_ns: int = 0) -> Range:
    return Range(TIME, lowest_ns, LONGEST_NS, whole=False)


_MOST_VTCM = 1 * GIB
_MOST_CORES = 64

RANGES: dict[str, Range] = {
    # the device, and what a client takes of it
    "cores": Range("cores", 1, _MOST_CORES),
    "core": Range("number of a core", 0, _MOST_CORES - 1),
    "hmx": Range("units", 0, 64),
    "hvx": Range("threads", 0, 256),
    "vtcm_mb": Range("MiB", 0, _MOST_VTCM // MIB, whole=False),
    "vtcm_bytes": Range("bytes", 0, _MOST_VTCM),
    "page_mb": Range("MiB", 0, _MOST_VTCM // MIB, whole=False),
    "dma_gbs": Range("GB/s", 0.001, 100_000, whole=False),
    "pd": Range("number of a process domain", 0, 2**31 - 1),
    "eviction": _time(),
    # clients
    "depth": Range("requests", 1, MAX_QUEUE_DEPTH),
    "steps": Range("yield points", 1, 1_000_000),
    "size_mb": Range("MiB", 0, 1 << 20, whole=False),
    "room_mb": Range("MiB", 1, 1 << 20, whole=False),
    "load": _time(),
    "deadline": _time(1),
    "timeout": _time(1),
    # language models
    "layers": Range("layers", 1, 10_000),
    "hidden": Range("elements", 1, 1_000_000),
    "heads": Range("heads", 1, 10_000),
    "kv_heads": Range("heads", 1, 10_000),
    "head_dim": Range("elements", 1, 100_000),
    "ffn": Range("elements", 1, 10_000_000),
    "vocab": Range("tokens", 1, 100_000_000),
    "context": Range("tokens", 1, 100_000_000),
    "prompt": Range("tokens", 1, 100_000_000),
    "generate": Range("tokens", 1, 1_000_000),
    "chunk": Range("tokens", 1, 4096),
    "parts": Range("parts", 1, 64),
    # events
    "run": _time(1),
    "at": _time(),
    "every": _time(1),
    "poisson": _time(1),
    "burst": Range("requests", 1, 100_000),
    "closed": Range("requests", 1, MAX_QUEUE_DEPTH),
    "from": _time(),
    "until": _time(),
    "think": _time(),
    "delay": _time(),
    "count": Range("requests", 1, 10_000_000),
    "seed": Range("", 0, 2**63 - 1),
    # the whole
    "duration": _time(),
    "window": _time(),
}

# Of a model: each size in its ``dims``, each value in its ``freeze``.
DIM = Range("elements", 1, 2**31 - 1)
FROZEN = Range("", -1e38, 1e38, whole=False)

MAX_CLIENTS = 10_000
MAX_REQUESTS = 10_000_000
"""Of all sources together, as far as it can be told beforehand."""
MAX_DETAILED = 1_000_000
"""Of those for which a plan keeps who held what when."""


def in_words(bounds: Range) -> tuple[str, str]:
    """Lowest and highest as they are written in the documentation."""
    if bounds.unit == TIME:
        return ("1 ns" if bounds.lowest else "0", "1 year")
    return f"{bounds.lowest:,}", f"{bounds.highest:,}"
