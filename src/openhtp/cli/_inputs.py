"""Options about a model that commands share: samples from files, dimensions to fix, inputs to freeze."""

from __future__ import annotations

import math
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import numpy.typing as npt
import typer

from openhtp.core.errors import InvalidArgument
from openhtp.device.op_packages import add_folders
from openhtp.frontend.calibration import Normalization, read_samples
from openhtp.ops._packages import OpPackage
from openhtp.runtime.objects.op_packages import found_package, registered
from openhtp.zoo.feeds import random_feeds

Feeds = dict[str, npt.NDArray[Any]]
Mean = Annotated[str, typer.Option(help="Subtracted from a picture's colours (0 to 1): 0.485,0.456,0.406.")]
Dim = Annotated[list[str] | None, typer.Option(help="Fix an open dimension: --dim batch=1 or --dim x.0=1.")]
Freeze = Annotated[list[str] | None, typer.Option(help="Make an input a constant: --freeze sr=16000.")]
OpPackageNames = Annotated[
    list[str] | None,
    typer.Option("--op-package", help="Operators of your own: module:attribute, or library.so:provider."),
]
Std = Annotated[str, typer.Option(help="Divisor of the colours: 0.229,0.224,0.225.")]


def op_packages_of(names: list[str] | None) -> tuple[OpPackage, ...]:
    """The packages that ``--op-package`` names; a module may lie in the working folder."""
    if names:
        add_folders([os.getcwd()])
    return tuple(map(found_package, names or ()))


def registered_named(names: list[str] | None) -> AbstractContextManager[tuple[OpPackage, ...]]:
    """Register these packages while a block runs."""
    return registered(op_packages_of(names))


def samples_of(
    model: bytes, inputs: Path | None, mean: str, std: str, count: int = 1, seed: int = 0
) -> list[Feeds]:
    """Samples from files; without files, ``count`` random ones."""
    if inputs is None:
        return random_feeds(model, count, seed=seed)
    return read_samples(inputs, model, normalization_of(mean, std))


def normalization_of(mean: str, std: str) -> Normalization:
    """Return the numbers of ``--mean`` and ``--std``, checked even if no picture needs them."""
    return Normalization(_numbers(mean, "mean"), _numbers(std, "std"))


def _numbers(text: str, option: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(word) for word in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(map(math.isfinite, numbers)) or (option == "std" and 0.0 in numbers):
        raise InvalidArgument(f"--{option} {text!r}; expected numbers like 0.5 or 0.485,0.456,0.406")
    return numbers


def parse_dims(options: list[str] | None) -> dict[str, int]:
    """Sizes by name; raises InvalidArgument for anything that is not NAME=SIZE."""
    sizes = {}
    for item in options or ():
        # Names that exporters make up may contain a = themselves.
        name, equals, size = item.rpartition("=")
        if not name or not equals or not size.isdecimal() or int(size) < 1:
            raise InvalidArgument(f"--dim {item!r}; expected NAME=SIZE, like batch=1")
        sizes[name] = int(size)
    return sizes


def parse_freeze(options: list[str] | None) -> dict[str, float | list[float]]:
    """Values by input: one number, or several with commas between them."""
    values: dict[str, float | list[float]] = {}
    for item in options or ():
        name, equals, text = item.rpartition("=")
        try:
            numbers = [_number(word) for word in text.split(",")]
        except ValueError:
            numbers = []
        if not name or not equals or not numbers:
            raise InvalidArgument(f"--freeze {item!r}; expected INPUT=VALUE, like sr=16000 or size=640,480")
        values[name] = numbers[0] if len(numbers) == 1 else numbers
    return values


def _number(word: str) -> float:
    """A whole number, a fraction, or a truth value."""
    truth = {"true": 1, "false": 0}.get(word.strip().lower())
    if truth is not None:
        return truth
    try:
        return int(word)
    except ValueError:
        return float(word)
