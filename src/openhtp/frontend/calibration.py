"""Calibration data: a folder of numpy files, one sample each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.errors import InvalidArgument
from openhtp.frontend.model import ValueType
from openhtp.frontend.onnx_reader import read_model

Array = npt.NDArray[Any]


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
    try:
        if path.suffix == ".npy":
            held = {next(iter(inputs)): np.load(path, allow_pickle=False)}
        else:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                held = dict(arrays)
    except (OSError, ValueError, EOFError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"{str(path)!r} cannot be read: {error}") from error
    if path.suffix == ".npy" and len(inputs) > 1:
        raise InvalidArgument(f"{path.name} holds one array; the model has {len(inputs)} inputs: use .npz files")
    missing = [name for name in inputs if name not in held]
    if missing:
        raise InvalidArgument(f"{path.name} has no array for input {missing[0]!r}; it has {', '.join(held)}")
    return {name: _fitted(path, name, held[name], kind) for name, kind in inputs.items()}


def _fitted(path: Path, name: str, array: Array, kind: ValueType) -> Array:
    if array.shape != kind.shape and (1, *array.shape) != kind.shape:
        raise InvalidArgument(
            f"{path.name}: input {name!r} has shape {list(array.shape)}; expected {list(kind.shape)}"
        )
    return np.ascontiguousarray(array, kind.dtype).reshape(kind.shape)
