"""Calibration data: a folder of numpy files, one sample each."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt

from openhtp.core.errors import InvalidArgument
from openhtp.core.files import read_file
from openhtp.core.units import GIB
from openhtp.frontend.model import ValueType
from openhtp.frontend.onnx_reader import read_model

Array = npt.NDArray[Any]
_MOST_BYTES = 2 * GIB
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# What numpy and zipfile raise for headers that make no sense.
_UNREADABLE = (
    *(OSError, ValueError, EOFError, TypeError, AttributeError, KeyError, SyntaxError, OverflowError),
    *(MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error),
)


def read_samples(folder: Path, model: bytes) -> list[dict[str, Array]]:
    """All samples of a folder, sorted by name: ``.npz`` with an array per input, or ``.npy`` for a single input.

    Arrays may lack a leading axis of size 1. Raises InvalidArgument for a file that does not fit the model.
    """
    inputs = read_model(model).inputs
    files = sorted(path for path in folder.iterdir() if path.suffix in (".npz", ".npy")) if folder.is_dir() else []
    if not files:
        raise InvalidArgument(f"{str(folder)!r} is not a folder with .npz or .npy files")
    return [_sample(path, dict(inputs)) for path in files]


def _sample(path: Path, inputs: dict[str, ValueType]) -> dict[str, Array]:
    if path.suffix == ".npy" and len(inputs) > 1:
        raise InvalidArgument(f"{path.name} holds one array; the model has {len(inputs)} inputs: use .npz files")
    data = io.BytesIO(read_file(path, most=_MOST_BYTES, what="a sample for calibration", error=InvalidArgument))
    try:
        if path.suffix == ".npy":
            return {name: _array(path, name, data, kind) for name, kind in inputs.items()}
        with zipfile.ZipFile(data) as archive:
            held = [name.removesuffix(".npy") for name in archive.namelist()]
            missing = [name for name in inputs if name not in held]
            if missing:
                raise InvalidArgument(
                    f"{path.name} has no array for input {missing[0]!r}; it has {', '.join(held)}"
                )
            return {name: _member(path, name, archive, kind) for name, kind in inputs.items()}
    except _UNREADABLE as error:
        raise InvalidArgument(f"{str(path)!r} cannot be read: {error}") from error


def _member(path: Path, name: str, archive: zipfile.ZipFile, kind: ValueType) -> Array:
    with archive.open(f"{name}.npy") as file:
        return _array(path, name, file, kind)


def _array(path: Path, name: str, file: IO[bytes], kind: ValueType) -> Array:
    """One array. Its header is looked at first: a small file can claim, or unpack to, more than memory holds."""
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"numpy format {version}; expected 1.0 or 2.0")
    shape, by_columns, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects; expected numbers")
    _check_shape(path, name, shape, kind)
    nbytes = math.prod(shape) * dtype.itemsize
    data = file.read(nbytes)
    if len(data) != nbytes:
        raise ValueError(f"input {name!r} has {len(data)} of its {nbytes} bytes")
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if by_columns else "C")
    return np.ascontiguousarray(array, kind.dtype).reshape(kind.shape)


def _check_shape(path: Path, name: str, shape: tuple[int, ...], kind: ValueType) -> None:
    if shape != kind.shape and (1, *shape) != kind.shape:
        raise InvalidArgument(f"{path.name}: input {name!r} has shape {list(shape)}; expected {list(kind.shape)}")
