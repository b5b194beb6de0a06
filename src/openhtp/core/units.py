"""Units of sizes and times, and sizes in words. Time inside openhtp is always integer nanoseconds."""

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
