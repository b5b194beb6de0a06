"""Units of sizes and times, and both in words. Time inside openhtp is always integer nanoseconds."""

from __future__ import annotations

import re

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000

TIME_UNITS = {"ns": 1, "us": US, "µs": US, "ms": MS, "s": SECOND, "min": 60 * SECOND, "h": 3600 * SECOND}
"""Nanoseconds of each unit in which a duration may be written."""
_NUMBER = r"\d{1,20}(?:\.\d{1,20})?(?:[eE][+-]?\d{1,2})?"
_DURATION = re.compile(rf"\s*({_NUMBER})(?:\s*/\s*({_NUMBER}))?\s*([a-zµ]{{1,3}})?\s*")


def duration_ns(text: str, unit_ns: int | None = None) -> float | None:
    """Nanoseconds of ``5ms``, ``1/30 s`` or, in units of ``unit_ns``, of ``5``; None for other text."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    number, divisor = float(match[1]), 1.0 if match[2] is None else float(match[2])
    scale = unit_ns if match[3] is None else TIME_UNITS.get(match[3])
    return None if scale is None or not divisor else number / divisor * scale


def number_in_words(value: float) -> str:
    """A time in whatever unit: ``33.5``, ``1,500.5``, and ``20,343`` rather than ``20342.6``."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,g}"


def bytes_in_words(nbytes: int) -> str:
    """``1536`` -> ``1.5 KiB``."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(nbytes) >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes} B"
