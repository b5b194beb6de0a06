"""Pictures as calibration data: read, resized and normalized for a model's input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.errors import InvalidArgument
from openhtp.frontend.model import ValueType

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_CHANNELS = {1: "L", 3: "RGB"}


@dataclass(frozen=True, slots=True)
class Normalization:
    """What is taken off and divided by, per channel, of colours from 0 to 1. One number is for all channels."""

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
    try:
        with Image.open(path) as picture:
            resized = picture.convert(mode).resize((width, height), Image.Resampling.BILINEAR)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidArgument(f"{str(path)!r} cannot be read: {error}") from error
    return np.asarray(resized)
