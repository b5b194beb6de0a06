"""The keys of a scenario file, mapping by mapping, and the bounds of its numbers.

One table for the reader, for the schema that editors use, and for docs/scheduling.md. Without an upper bound a
slip of a few zeros, or a hostile file, would plan for hours or fill the memory.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Any

from openhtp.core.limits import MAX_QUEUE_DEPTH
from openhtp.core.units import GIB, MIB, SECOND
from openhtp.core.validating import WrittenFields
from openhtp.core.value_kinds import RefusedValue
from openhtp.options.device import POLICIES as POLICIES
from openhtp.planning.scenario import Pattern

MODEL = ("model", "precision", "dims", "freeze")
"""Which model runs."""
PRECISIONS = ("float", "w8a8", "w8a16")

TOP = ("name", "unit", "device", "clients", "events", "policy", "duration", "switching")
DEVICE_SIZES = ("soc", "hvx", "hmx", "vtcm_mb", "vtcm_bytes", "cores", "dma_gbs", "eviction")
DEVICE = (*DEVICE_SIZES, "sharing", "windowing", "parallel_graphs", "platform", "perf_profile")
CLIENT_SIZES = ("hmx", "hvx", "vtcm_mb", "vtcm_bytes", "page_mb", "core", "pd")
CLIENT_TIMES = ("deadline", "depth", "steps", "timeout", "run", "size_mb", "load")
CLIENT_CALLS = ("tensors", "profiling")
CLIENT = (
    *("name", "kind", "priority", "perf_profile", "votes"),
    *CLIENT_SIZES,
    *CLIENT_TIMES,
    *CLIENT_CALLS,
    *MODEL,
    "llm",
)
TENSORS = ("registered", "raw")
PROFILING = ("off", "basic", "detailed", "linting", "optrace")
"""Levels of profiling; those after the second one cancel the gain of a queue."""
VOTES = ("core", "bus", "hmx")
LLM_SHAPE = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
LLM = ("preset", *LLM_SHAPE, "precision", "context", "prompt", "generate", "chunk", "parts")
LLM_PRECISIONS = ("w4a16", "w8a16", "w4fp16")
PATTERNS = tuple(pattern.value for pattern in Pattern)
EVENT = ("client", "run", *MODEL, *PATTERNS, "from", "until", "count", "seed", "think", "delay")
SWITCHING = ("graphs", "retained", "room_mb")
POLICY = ("name", "window")
KINDS = ("graph", "app")


LONGEST_NS = 366 * 24 * 3600 * SECOND
TIME = "time"
"""Stands for the scenario's own unit of time."""


@dataclass(frozen=True, slots=True)
class NumberRange:
    """What a number counts, and its bounds, which are included. Bounds of times are in nanoseconds."""

    unit: str
    lowest: float
    highest: float
    whole: bool = True

    python_type = "float"

    @property
    def words(self) -> str:
        """What is accepted."""
        return "a whole number" if self.whole else "a number"

    def read(self, value: object) -> float:
        """Accept numbers within the bounds; where whole numbers are expected, 2.0 is 2."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise RefusedValue("a number")
        if not value and self.lowest > 0:
            raise RefusedValue(self.words, "0 must be above 0")
        if value < self.lowest:
            below = f"{value} is below {self.lowest:g}" if self.lowest else f"{value} is negative"
            raise RefusedValue(self.words, below)
        if value > self.highest:
            raise RefusedValue(self.words, f"{value} is above {self.highest:,}, the most that is planned")
        if self.whole and value != int(value):
            raise RefusedValue(self.words)
        return int(value) if self.whole else value

    def without_limits(self) -> NumberRange:
        """The range without its bounds: only the sign of the number is checked."""
        return replace(self, lowest=0, highest=sys.float_info.max)


def _time_range(lowest_ns: int = 0) -> NumberRange:
    return NumberRange(TIME, lowest_ns, LONGEST_NS, whole=False)


_MOST_VTCM = 1 * GIB
_MOST_CORES = 64

RANGES: dict[str, NumberRange] = {
    # the device, and the part of it that a client takes
    "cores": NumberRange("cores", 1, _MOST_CORES),
    "core": NumberRange("number of a core", 0, _MOST_CORES - 1),
    "hmx": NumberRange("units", 0, 64),
    "hvx": NumberRange("threads", 0, 256),
    "vtcm_mb": NumberRange("MiB", 0, _MOST_VTCM // MIB, whole=False),
    "vtcm_bytes": NumberRange("bytes", 0, _MOST_VTCM),
    "page_mb": NumberRange("MiB", 0, _MOST_VTCM // MIB, whole=False),
    "dma_gbs": NumberRange("GB/s", 0.001, 100_000, whole=False),
    "pd": NumberRange("number of a process domain", 0, 2**31 - 1),
    "eviction": _time_range(),
    # clients
    "depth": NumberRange("requests", 1, MAX_QUEUE_DEPTH),
    "steps": NumberRange("yield points", 1, 1_000_000),
    "size_mb": NumberRange("MiB", 0, 1 << 20, whole=False),
    "room_mb": NumberRange("MiB", 1, 1 << 20, whole=False),
    "load": _time_range(),
    "deadline": _time_range(1),
    "timeout": _time_range(1),
    # language models
    "layers": NumberRange("layers", 1, 10_000),
    "hidden": NumberRange("elements", 1, 1_000_000),
    "heads": NumberRange("heads", 1, 10_000),
    "kv_heads": NumberRange("heads", 1, 10_000),
    "head_dim": NumberRange("elements", 1, 100_000),
    "ffn": NumberRange("elements", 1, 10_000_000),
    "vocab": NumberRange("tokens", 1, 100_000_000),
    "context": NumberRange("tokens", 1, 100_000_000),
    "prompt": NumberRange("tokens", 1, 100_000_000),
    "generate": NumberRange("tokens", 1, 1_000_000),
    "chunk": NumberRange("tokens", 1, 4096),
    "parts": NumberRange("parts", 1, 64),
    # events
    "run": _time_range(1),
    "at": _time_range(),
    "every": _time_range(1),
    "poisson": _time_range(1),
    "burst": NumberRange("requests", 1, 100_000),
    "closed": NumberRange("requests", 1, MAX_QUEUE_DEPTH),
    "from": _time_range(),
    "until": _time_range(),
    "think": _time_range(),
    "delay": _time_range(),
    "count": NumberRange("requests", 1, 10_000_000),
    "seed": NumberRange("", 0, 2**63 - 1),
    # the whole
    "duration": _time_range(),
    "window": _time_range(),
}

# Of a model: each size in its ``dims``, each value in its ``freeze``.
DIM = NumberRange("elements", 1, 2**31 - 1)
FROZEN = NumberRange("", -1e38, 1e38, whole=False)

MAX_CLIENTS = 10_000
MAX_REQUESTS = 10_000_000
"""Requests of all sources together, as far as they can be counted beforehand."""
MAX_DETAILED = 1_000_000
"""Requests of a plan that records what every job held, and when."""


def in_words(bounds: NumberRange) -> tuple[str, str]:
    """Lowest and highest as they are written in the documentation."""
    if bounds.unit == TIME:
        return ("1 ns" if bounds.lowest else "0", "1 year")
    return f"{bounds.lowest:,}", f"{bounds.highest:,}"


def ranged(fields: WrittenFields, key: str, default: Any = None) -> Any:
    """A number of a scenario, within the bounds of its key; ``default`` if the key is absent."""
    return fields.read(key, RANGES[key], default)
