"""The saver's files: one with calls as lines, one with the data of tensors, each once; see ``saving_calls.py``."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import fcntl
import hashlib
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.checks import shown
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.tensor import TensorSpec
from openhtp.core.version import VERSION
from openhtp.records import calls as cs
from openhtp.report.c_source import HEADER_NAME, SOURCE_NAME, c_source

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]
_PLAIN = (str, int, float, bool, type(None))
# Larger parameters of nodes go into the data file.
_MOST_LISTED = 64
_INCLUDE = Path(__file__).parents[2] / "capi" / "include"


class Saver:
    """An open recording. Lines are written at once, so that a program that dies leaves a record of its calls."""

    def __init__(self, folder: Path) -> None:
        self._lock = threading.RLock()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next = itertools.count(1)
        self._places: dict[bytes, int] = {}
        self._executions: dict[int, int] = {}
        self._end = 0
        self._pid = os.getpid()
        try:
            self.folder, self._lines = _opened(folder)
            self._data = (self.folder / cs.DATA_NAME).open("wb", buffering=0)
        except OSError as error:
            raise InvalidArgument(f"calls cannot be saved in {str(folder)!r}: {error.strerror}") from error
        self.write(cs.Begin(format=cs.FORMAT, version=cs.FORMAT_VERSION, openhtp=VERSION, data=cs.DATA_NAME))

    def write(self, call: cs.Call) -> None:
        """Write one line; in the child of a fork nothing, as the files are the parent's."""
        if os.getpid() != self._pid:
            return
        with self._lock, contextlib.suppress(ValueError):  # closed by another thread
            try:
                self._lines.write(cs.encode_call(call) + b"\n")
            except OSError as error:
                log.error("a call could not be saved in %r: %s", str(self.folder), error.strerror)

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            self._lines.close()
            self._data.close()
            self.write_source()

    def write_source(self) -> None:
        """Write what was called so far as a C program, too, with the declarations that it needs."""
        if os.getpid() != self._pid:
            return
        try:
            lines = (self.folder / cs.CALLS_NAME).read_bytes().splitlines()
            text = c_source((cs.decode_call(line) for line in lines), self._bytes)
            (self.folder / SOURCE_NAME).write_text(text)
            header = _INCLUDE / HEADER_NAME
            (self.folder / HEADER_NAME).write_bytes(header.read_bytes())
        except (OSError, QnnError) as error:
            log.error("the calls in %r could not be written as C: %s", str(self.folder), error)

    def _bytes(self, stored: cs.StoredArray) -> bytes:
        with (self.folder / cs.DATA_NAME).open("rb") as data:
            data.seek(stored.offset)
            return data.read(stored.nbytes)

    # Objects

    def number(self, thing: Any) -> int | None:
        """The number of an object; None if the file does not know it."""
        return self._numbers.get(thing)

    def name(self, thing: Any) -> int:
        """Give an object a number."""
        with self._lock:
            number = self._numbers.get(thing)
            if number is None:
                number = self._numbers[thing] = next(self._next)
            return number

    def rename(self, thing: Any, number: int) -> None:
        """Give a part of an object the object's number, for calls that know only the part."""
        with self._lock:
            self._numbers[thing] = number

    def begin(self, execution: object) -> int:
        """A number for an execution, by which its end is known."""
        with self._lock:
            number = self._executions[id(execution)] = next(self._next)
            return number

    def end(self, execution: object) -> int | None:
        """The number of an execution that is over; None if its beginning is not in the file."""
        with self._lock:
            return self._executions.pop(id(execution), None)

    # Data

    def array(self, array: Array) -> cs.StoredArray:
        """Put an array into the data file; data that is there already is not written again."""
        dense = np.ascontiguousarray(array)
        return self._put(dense.tobytes(), dense.dtype.newbyteorder("<").str, list(dense.shape))

    def blob(self, data: bytes) -> cs.StoredArray:
        """Put bytes into the data file, once."""
        return self._put(data, "|u1", [len(data)])

    def _put(self, data: bytes, dtype: str, shape: list[int]) -> cs.StoredArray:
        digest = hashlib.sha256(data).digest()
        with self._lock:
            offset = self._places.get(digest)
            if offset is None:
                offset = self._places[digest] = self._end
                if os.getpid() == self._pid:
                    with contextlib.suppress(ValueError):
                        _write_all(self._data.fileno(), data)
                self._end += len(data)
        return cs.StoredArray(offset, len(data), dtype, shape)

    # Values

    def options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options as JSON can hold them: an object of ours as its number, other values that JSON lacks as text."""
        return {name: self._plain(value) for name, value in options.items() if value is not None}

    def _plain(self, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return value.name.lower()
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self._plain(item) for item in value]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self.options({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
        with contextlib.suppress(TypeError):
            number = self._numbers.get(value)
            if number is not None:
                return {"object": number}
        return {"text": shown(value)}

    def tensor(self, graph: int, spec: TensorSpec, data: Array | None) -> cs.TensorCreate:
        """A tensor as the file holds it."""
        return cs.TensorCreate(
            graph=graph,
            name=spec.name,
            type=spec.kind.name,
            data_type=spec.dtype.qnn_name,
            dimensions=list(spec.shape),
            quantize_params=_encoding(spec),
            dynamic=list(spec.dynamic),
            sparse_elements=spec.sparse_elements,
            data_format=spec.data_format.name,
            data=None if data is None else self.array(data),
        )

    def node(
        self,
        graph: int,
        op: str,
        name: str,
        inputs: list[str | None],
        outputs: list[str],
        params: Mapping[str, Any],
        package: str,
    ) -> cs.GraphAddNode:
        """A node as the file holds it."""
        arrays: dict[str, cs.StoredArray] = {}
        plain: dict[str, Any] = {}
        for key, value in params.items():
            if isinstance(value, _PLAIN):
                plain[key] = self._plain(value)
                continue
            array = np.asarray(value)
            if array.size > _MOST_LISTED:
                arrays[key] = self.array(array)
            else:
                plain[key] = cs.ListedArray(
                    array.dtype.newbyteorder("<").str, list(array.shape), array.ravel().tolist()
                )
        return cs.GraphAddNode(
            graph=graph,
            name=name,
            op=op,
            inputs=inputs,
            outputs=outputs,
            params=plain,
            arrays=arrays,
            package=package,
        )


def _encoding(spec: TensorSpec) -> cs.QuantizeParams | None:
    quant = spec.quant
    if isinstance(quant, ScaleOffset):
        return cs.QuantizeParams(scales=[quant.scale], offsets=[quant.offset])
    if isinstance(quant, AxisScaleOffset):
        return cs.QuantizeParams(scales=list(quant.scales), offsets=list(quant.offsets), axis=quant.axis)
    return None


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _opened(folder: Path) -> tuple[Path, FileIO]:
    """The file for lines. If another process is writing in the folder, this one gets a subfolder of its own."""
    for path in (folder, folder / f"process_{os.getpid()}"):
        path.mkdir(parents=True, exist_ok=True)
        file = (path / cs.CALLS_NAME).open("ab", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        file.truncate(0)
        return path, file
    raise BlockingIOError(0, "another process writes there")
