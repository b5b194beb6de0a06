"""Samples for a model from files: options that commands share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import numpy.typing as npt
import typer

from openhtp.core.errors import InvalidArgument
from openhtp.frontend.calibration import Normalization, read_samples

Feeds = dict[str, npt.NDArray[Any]]
Mean = Annotated[str, typer.Option(help="Taken off a picture's colours (0 to 1): 0.485,0.456,0.406.")]
Std = Annotated[str, typer.Option(help="What they are divided by: 0.229,0.224,0.225.")]


def samples_from(path: Path, model: bytes, normalization: Normalization) -> list[Feeds]:
    """Samples from files."""
    return read_samples(path, model, normalization)


def normalization_of(mean: str, std: str) -> Normalization:
    """What ``--mean`` and ``--std`` say, checked also where no picture needs it."""
    return Normalization(_numbers(mean, "mean"), _numbers(std, "std"))


def _numbers(text: str, option: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(math.isfinite(number) for number in found) or (option == "std" and 0.0 in found):
        raise InvalidArgument(f"--{option} {text!r}; expected numbers like 0.5 or 0.485,0.456,0.406")
    return found
