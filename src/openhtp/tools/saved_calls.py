"""A recording of the saver, read as if an enemy had written it: lines are calls, data lies in its file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt

from openhtp.core.errors import FormatError
from openhtp.core.files import open_file, read_file
from openhtp.core.units import GIB, MIB
from openhtp.records import calls as cs

_MOST_BYTES = GIB
_MOST_LINE = 64 * MIB
_MOST_DATA = 4 * GIB
_TYPES = ("|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "|b1")

Array = npt.NDArray[Any]


class SavedCalls:
    """An opened recording. ``line`` is where the reader is, for messages."""

    def __init__(self, path: Path) -> None:
        self.path = path / cs.CALLS_NAME if path.is_dir() else path
        self.line = 0
        self._lines = read_file(self.path, most=_MOST_BYTES, what="saved calls", error=FormatError).splitlines()
        if not self._lines:
            self.refuse("is empty; expected what the saver wrote")
        self.line = 1
        first = self._decoded(self._lines[0])
        if not isinstance(first, cs.Begin) or first.format != cs.FORMAT:
            self.refuse(f"does not begin with the format; expected what the saver wrote ({cs.FORMAT})")
        if first.version != cs.FORMAT_VERSION:
            self.refuse(
                f"has version {first.version}; expected {cs.FORMAT_VERSION}: use the openhtp that wrote it"
            )
        if first.data != cs.DATA_NAME:
            self.refuse(f"has its data in {first.data[:100]!r}; expected {cs.DATA_NAME}, beside it")
        self._data = self.path.parent / cs.DATA_NAME

    @property
    def count(self) -> int:
        """Lines that there are."""
        return len(self._lines)

    def calls(self) -> Iterator[cs.Call]:
        """One after the other."""
        for number, line in enumerate(self._lines[1:], 2):
            self.line = number
            if line.strip():
                yield self._decoded(line)

    def array(self, data: cs.StoredArray) -> Array:
        """An array from the file beside."""
        kind = self._type(data.dtype)
        if math.prod(data.shape) * kind.itemsize != data.nbytes:
            self.refuse(f"has {data.nbytes} bytes for {data.dtype} of shape {data.shape}")
        return np.frombuffer(self.blob(data), kind).reshape(data.shape)

    def blob(self, data: cs.StoredArray) -> bytes:
        """Bytes from the file beside."""
        if data.nbytes > _MOST_DATA:
            self.refuse(f"asks for {data.nbytes} bytes; the limit is {_MOST_DATA}")
        with open_file(self._data, most=None, what="the data of saved calls", error=FormatError) as (fd, size):
            if data.offset + data.nbytes > size:
                self.refuse(f"asks for bytes {data.offset} to {data.offset + data.nbytes}; the file has {size}")
            os.lseek(fd, data.offset, os.SEEK_SET)
            parts, left = [], data.nbytes
            while left and (part := os.read(fd, min(left, GIB))):
                parts.append(part)
                left -= len(part)
        return b"".join(parts)

    def param(self, value: Any) -> Any:
        """A parameter of a node: a small array that is written out, or a plain value."""
        if not isinstance(value, dict):
            return value
        try:
            listed = msgspec.convert(value, cs.ListedArray)
            return np.array(listed.values, self._type(listed.dtype)).reshape(listed.shape)
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
            self.refuse(f"has a parameter that is no array: {error}")

    def refuse(self, problem: str) -> NoReturn:
        """Raise, naming the line."""
        where = f"{self.path}:{self.line}" if self.line else str(self.path)
        raise FormatError(f"{where}: {problem}")

    def _type(self, text: str) -> np.dtype[Any]:
        if text not in _TYPES:
            self.refuse(f"has data of type {text[:20]!r}; expected one of {', '.join(_TYPES)}")
        return np.dtype(text)

    def _decoded(self, line: bytes) -> cs.Call:
        if len(line) > _MOST_LINE:
            self.refuse(f"has {len(line)} bytes; expected at most {_MOST_LINE}")
        try:
            return cs.decode_call(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            self.refuse(f"is no saved call: {error}")
