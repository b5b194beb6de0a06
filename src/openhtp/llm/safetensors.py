"""Safetensors files: a header in JSON that says where each tensor's bytes lie. Nothing in them is executed."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.checks import items_of, shown, whole_number
from openhtp.core.errors import BadModel
from openhtp.core.files import open_file, read_file

_TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F64": np.dtype("<f8"),
}
_MOST_HEADER = 100 << 20
_WHAT = "tensors (safetensors)"


class SafetensorsFile:
    """An opened file. Tensors are read when they are asked for, as float32."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with open_file(path, most=None, what=_WHAT, error=BadModel) as (_, size):
            self._size = size
        head = read_file(path, most=8, what=_WHAT, error=BadModel, nbytes=8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else self._size
        if not 2 <= length <= min(_MOST_HEADER, self._size - 8):
            raise BadModel(f"{str(path)!r} is no safetensors file: its header would have {length} bytes")
        text = read_file(path, most=_MOST_HEADER, what=_WHAT, error=BadModel, offset=8, nbytes=length)
        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadModel(f"{str(path)!r} has a damaged header: {error}") from error
        if not isinstance(header, dict):
            raise BadModel(f"{str(path)!r} has a header that is a {type(header).__name__}; expected an object")
        self._begin = 8 + length
        self._entries: Mapping[str, Any] = {
            name: entry for name, entry in header.items() if name != "__metadata__"
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors."""
        return tuple(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Sizes of a tensor."""
        return self._entry(name)[1]

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor as float32."""
        dtype, shape, begin, nbytes = self._entry(name)
        data = read_file(
            self._path, most=nbytes, what=_WHAT, error=BadModel, offset=self._begin + begin, nbytes=nbytes
        )
        stored = np.frombuffer(data, _TYPES[dtype])
        if dtype == "BF16":
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(stored, np.float32).reshape(shape)

    def _entry(self, name: str) -> tuple[str, tuple[int, ...], int, int]:
        entry = self._entries[name]
        where = f"tensor {name!r} of {str(self._path)!r}"
        if not isinstance(entry, dict):
            raise BadModel(f"{where} is described by {shown(entry)}; expected dtype, shape and data_offsets")
        dtype = entry.get("dtype")
        if not isinstance(dtype, str) or dtype not in _TYPES:
            raise BadModel(f"{where} has type {shown(dtype)}; expected one of {', '.join(_TYPES)}")
        sizes = [whole_number(size) for size in items_of(entry.get("shape")) or ()]
        places = [whole_number(place) for place in items_of(entry.get("data_offsets")) or ()]
        if None in sizes or len(places) != 2 or any(size is not None and size < 0 for size in sizes):
            raise BadModel(f"{where} has shape {shown(entry.get('shape'))} at {shown(entry.get('data_offsets'))}")
        shape = tuple(size for size in sizes if size is not None)
        begin, end = (place if place is not None else -1 for place in places)
        nbytes = int(np.prod(shape, dtype=object)) * _TYPES[dtype].itemsize
        if begin < 0 or end - begin != nbytes or self._begin + end > self._size:
            raise BadModel(
                f"{where}, {dtype}{list(shape)}, takes {nbytes} bytes; the file has bytes {begin} to {end} for it"
                f" and ends at {self._size - self._begin}"
            )
        return dtype, shape, begin, nbytes
