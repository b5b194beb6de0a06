"""How data lies in the file: as it is, floats in half precision, or bytes of few values in 4 bits.

A coding loses nothing: what comes back is what was coded, to the bit. Data that would lose something stays plain.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from openhtp.core.errors import BadBinary

Array = npt.NDArray[Any]

# Values that 4 bits tell apart.
_STEPS = 16
_LOW_NIBBLES = np.uint16(0x0F0F)


class Coding(enum.IntEnum):
    """How the bytes of a section become data."""

    PLAIN = 0
    HALF = 1
    """Float16 numbers, which stand for float32 ones."""
    NIBBLES = 2
    """Two bytes of data in each stored byte, the first in its low 4 bits: how far they are above the lowest."""

    @property
    def growth(self) -> int:
        """How many bytes of data come out of a stored one."""
        return 1 if self is Coding.PLAIN else 2


class CodedData(NamedTuple):
    """Data as it is stored. ``lowest`` is the value that nibbles count from, modulo 256."""

    stored: memoryview
    coding: Coding = Coding.PLAIN
    lowest: int = 0


def plain(data: Array) -> CodedData:
    """Data as it is."""
    return CodedData(np.asarray(data, order="C").reshape(-1).view(np.uint8).data)


def halved(data: Array) -> CodedData | None:
    """Float32 numbers in half precision; None if one of them would change."""
    whole = np.asarray(data, order="C").reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        half = whole.astype(np.float16)
    if not np.array_equal(half.astype(np.float32).view(np.uint32), whole.view(np.uint32)):
        return None
    return CodedData(half.view(np.uint8).data, Coding.HALF)


def nibbles(data: Array) -> CodedData | None:
    """Bytes in 4 bits each; None if there is an odd number of them, or if they are of more than sixteen values.

    Signed or unsigned: -3 is next to 2 in the one, 253 to 255 in the other.
    """
    whole = np.asarray(data, order="C").reshape(-1).view(np.uint8)
    if not whole.size or whole.size % 2:
        return None
    for numbers in (whole.view(np.int8), whole):
        lowest = int(numbers.min())
        if int(numbers.max()) - lowest < _STEPS:
            above = whole - np.uint8(lowest % 256)
            return CodedData((above[0::2] | above[1::2] << 4).data, Coding.NIBBLES, lowest % 256)
    return None


def decoded(stored: memoryview, coding: Coding, lowest: int = 0) -> memoryview:
    """Data from stored bytes. Raises BadBinary if there is no such number of bytes in this coding."""
    if coding is Coding.HALF:
        if stored.nbytes % 2:
            raise BadBinary(f"{stored.nbytes} bytes are no numbers of half precision")
        return np.frombuffer(stored, np.float16).astype(np.float32).view(np.uint8).data
    if coding is Coding.NIBBLES:
        pairs = np.frombuffer(stored, np.uint8).astype(np.uint16)
        pairs |= pairs << 4
        pairs &= _LOW_NIBBLES
        data = pairs.astype("<u2", copy=False).view(np.uint8)
        if lowest:
            data += np.uint8(lowest)
        return data.data
    return stored
