"""Calibration data from files: numpy arrays, raw tensors by the vendor's input lists, or pictures."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
_MOST_LIST_BYTES = 64 << 20
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# What numpy and zipfile raise for headers that make no sense.
_UNREADABLE = (
    *(OSError, ValueError, EOFError, TypeError, AttributeError, KeyError, SyntaxError, OverflowError),
    *(MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error),
)
Inputs = Mapping[str, ValueType]

_ARRAYS = (".npz", ".npy")
_RAW = (".raw", ".bin")
_KINDS = "a folder of .npz, .npy or pictures, one such file, a raw file, or a list of them (.txt)"


def read_samples(source: Path, model: bytes, normalization: Normalization | None = None) -> list[dict[str, Array]]:
    """All samples of a folder, sorted by name, of one file, or of an input list as ``qnn-net-run`` reads it.

    ``.npz`` holds an array per input, ``.npy`` and pictures are for a model with a single input. Arrays may lack a
    leading axis of size 1, or have one more than the input: then each row is a sample. Raises InvalidArgument for
    a file that does not fit the model.
    """
    inputs = read_model(model).inputs
    known = (*_ARRAYS, *PICTURES)
    if source.is_dir():
        files = sorted(path for path in source.iterdir() if path.suffix.lower() in known)
    elif source.suffix.lower() in (*known, *_RAW, ".txt") and source.is_file():
        files = [source]
    else:
        files = []
    if not files:
        raise InvalidArgument(f"{str(source)!r} has no samples; expected {_KINDS}")
    return [sample for path in files for sample in _samples(path, inputs, normalization or Normalization())]


def _samples(path: Path, inputs: Inputs, normalization: Normalization) -> list[dict[str, Array]]:
    suffix = path.suffix.lower()
    if suffix == ".txt":
        return _listed_samples(path, inputs)
    if suffix in _RAW:
        return [_listed_sample(path, path.name, [path.name], inputs)]
    if suffix in PICTURES:
        return [picture_sample(path, inputs, normalization)]
    return _array_samples(path, _arrays(path, inputs), inputs)


# Numpy's files


def _arrays(path: Path, inputs: Inputs) -> dict[str, Array]:
    if path.suffix.lower() == ".npy" and len(inputs) > 1:
        raise InvalidArgument(f"{path.name} holds one array; the model has {len(inputs)} inputs: use .npz files")
    data = io.BytesIO(read_file(path, most=_MOST_BYTES, what="a sample for calibration", error=InvalidArgument))
    try:
        if path.suffix.lower() == ".npy":
            return {next(iter(inputs)): _array(data)}
        with zipfile.ZipFile(data) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            missing = [name for name in inputs if name not in names]
            if missing:
                raise InvalidArgument(
                    f"{path.name} has no array for input {missing[0]!r}; it has {', '.join(names)}"
                )
            return {name: _member(archive, name) for name in inputs}
    except _UNREADABLE as error:
        raise InvalidArgument(f"{str(path)!r} cannot be read: {error}") from error


def _member(archive: zipfile.ZipFile, name: str) -> Array:
    with archive.open(f"{name}.npy") as file:
        return _array(file)


def _array(file: IO[bytes]) -> Array:
    """One array. The header is checked first: a small file can claim, or unpack to, more than memory holds."""
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"numpy format {version}; expected 1.0 or 2.0")
    shape, by_columns, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects; expected numbers")
    nbytes = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or nbytes > _MOST_BYTES:
        raise ValueError(f"an array has shape {list(shape)}; expected at most {_MOST_BYTES} bytes")
    data = file.read(nbytes)
    if len(data) != nbytes:
        raise ValueError(f"an array has {len(data)} of its {nbytes} bytes")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if by_columns else "C")


def _array_samples(path: Path, arrays: Mapping[str, Array], inputs: Inputs) -> list[dict[str, Array]]:
    if all(arrays[name].shape in (kind.shape, _without_batch(kind)) for name, kind in inputs.items()):
        return [{name: _stored(arrays[name], kind) for name, kind in inputs.items()}]
    rows = {arrays[name].shape[0] if arrays[name].ndim else 0 for name in inputs}
    for name, kind in inputs.items():
        array = arrays[name]
        # Each row is a sample, and may lack the axis of a batch of one.
        if len(rows) != 1 or array.ndim == 0 or array.shape[1:] not in (kind.shape, _without_batch(kind)):
            raise InvalidArgument(
                f"{path.name}: input {name!r} has shape {list(array.shape)}; expected {list(kind.shape)}, or one"
                " sample more per row"
            )
    return [{name: _stored(arrays[name][row], kind) for name, kind in inputs.items()} for row in range(rows.pop())]


def _without_batch(kind: ValueType) -> tuple[int, ...] | None:
    return kind.shape[1:] if kind.shape[:1] == (1,) else None


def _stored(array: Array, kind: ValueType) -> Array:
    return np.ascontiguousarray(array, kind.dtype).reshape(kind.shape)


# The vendor's lists


def _listed_samples(path: Path, inputs: Inputs) -> list[dict[str, Array]]:
    """One line per inference: ``name:=file`` pairs, or files in the order of the inputs."""
    data = read_file(path, most=_MOST_LIST_BYTES, what="a list of raw files", error=InvalidArgument)
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{str(path)!r} cannot be read: {error}") from error
    samples = []
    for number, line in enumerate(lines, 1):
        # In older tools, lines that begin like this name outputs.
        if line.strip() and line[0] not in "#%":
            samples.append(_listed_sample(path, f"{path.name}:{number}", line.split(), inputs))
    if not samples:
        raise InvalidArgument(f"{path.name} names no files; expected a line per inference")
    return samples


def _listed_sample(path: Path, where: str, entries: Sequence[str], inputs: Inputs) -> dict[str, Array]:
    names = list(inputs)
    pairs = [entry.partition(":=") for entry in entries]
    if all(mark for _, mark, _ in pairs):
        files = {name: file for name, _, file in pairs}
    elif any(mark for _, mark, _ in pairs) or len(entries) != len(names):
        raise InvalidArgument(
            f"{where} has {len(entries)} entries; expected name:=file for each of {', '.join(names)}, or"
            f" {len(names)} files in that order"
        )
    else:
        files = dict(zip(names, entries, strict=True))
    if set(files) != set(names):
        raise InvalidArgument(f"{where} names {', '.join(files)}; the model's inputs are {', '.join(names)}")
    return {name: _raw(path, where, name, files[name], kind) for name, kind in inputs.items()}


def _raw(path: Path, where: str, name: str, file: str, kind: ValueType) -> Array:
    """A raw file: 32-bit floats as the vendor's tools write them, or the input's own type."""
    # Relative to where the command runs, as the vendor's tools do; lists are moved together with their files.
    source = next((each for each in (Path(file), path.parent / file) if each.is_file()), None)
    if source is None:
        raise InvalidArgument(f"{where}: {file!r} is not a file")
    data = read_file(source, most=_MOST_BYTES, what="a raw input", error=InvalidArgument)
    elements = math.prod(kind.shape)
    if len(data) == 4 * elements:
        floats = np.frombuffer(data, "<f4")
        # Four-byte integers that are read as floats are almost 0, and never whole numbers.
        if kind.dtype.kind == "f" or np.array_equal(floats, np.rint(floats)):
            return _stored(floats, kind)
    if len(data) == elements * kind.dtype.itemsize:
        return _stored(np.frombuffer(data, kind.dtype.newbyteorder("<")), kind)
    raise InvalidArgument(
        f"{where}: {file!r} has {len(data)} bytes; input {name!r} takes {4 * elements} (float32) or"
        f" {elements * kind.dtype.itemsize} ({kind.dtype})"
    )


PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_CHANNELS = {1: "L", 3: "RGB"}
_MOST_PICTURE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Normalization:
    """The mean to subtract from colours of 0 to 1, and the divisor, per channel or one for all."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


def picture_sample(
    path: Path, inputs: Mapping[str, ValueType], normalization: Normalization
) -> dict[str, npt.NDArray[Any]]:
    """A picture as the one input of a model. Integer inputs get colours from 0 to 255, as they are in the file."""
    if len(inputs) != 1:
        raise InvalidArgument(
            f"{path.name} is a picture; the model has the inputs {', '.join(inputs)}: freeze all but one, or use"
            " .npz files"
        )
    ((name, kind),) = inputs.items()
    axis = next((axis for axis in (1, 3) if len(kind.shape) == 4 and kind.shape[axis] in _CHANNELS), None)
    if axis is None:
        raise InvalidArgument(
            f"{path.name} is a picture; input {name!r} has shape {list(kind.shape)}: no colours on axis 1 or 3"
        )
    channels = kind.shape[axis]
    height, width = kind.shape[2:] if axis == 1 else kind.shape[1:3]
    colours = _pixels(path, _CHANNELS[channels], width, height).reshape(height, width, channels)
    if kind.dtype.kind == "f":
        mean, std = (np.array(numbers, np.float64) for numbers in (normalization.mean, normalization.std))
        for numbers in (mean, std):
            if numbers.size not in (1, channels):
                raise InvalidArgument(f"{numbers.size} numbers for {channels} channels; expected 1 or {channels}")
        colours = (colours / 255 - mean) / std
    if axis == 1:
        colours = colours.transpose(2, 0, 1)
    return {name: np.ascontiguousarray(np.broadcast_to(colours, kind.shape), kind.dtype)}


def _pixels(path: Path, mode: str, width: int, height: int) -> npt.NDArray[Any]:
    try:
        from PIL import Image
    except ImportError as error:
        raise InvalidArgument(
            f"{path.name} is a picture; reading it takes Pillow: pip install openhtp[pictures]"
        ) from error
    data = read_file(path, most=_MOST_PICTURE_BYTES, what="a picture", error=InvalidArgument)
    try:
        with Image.open(io.BytesIO(data)) as picture:
            resized = picture.convert(mode).resize((width, height), Image.Resampling.BILINEAR)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidArgument(f"{str(path)!r} cannot be read: {error}") from error
    return np.asarray(resized)
