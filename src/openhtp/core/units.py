"""Sizes and times in words, for messages and tables. Time inside openhtp is always integer nanoseconds."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000


def bytes_in_words(nbytes: int) -> str:
    """``1536`` -> ``1.5 KiB``."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(nbytes) >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes} B"


def time_in_words(time_ns: float) -> str:
    """``1_500_000`` -> ``1.5 ms``."""
    for unit, name in ((SECOND, "s"), (MS, "ms"), (US, "us")):
        if abs(time_ns) >= unit:
            return f"{time_ns / unit:.4g} {name}"
    return f"{time_ns:.4g} ns"
