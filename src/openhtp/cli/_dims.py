"""``--dim batch=1`` and ``--freeze sr=16000``: what a model leaves open."""

from __future__ import annotations

from typing import Annotated

import typer

from openhtp.core.errors import InvalidArgument

Dim = Annotated[list[str] | None, typer.Option(help="Fix an open dimension: --dim batch=1 or --dim x.0=1.")]
Freeze = Annotated[list[str] | None, typer.Option(help="Make an input a constant: --freeze sr=16000.")]


def parse_dims(given: list[str] | None) -> dict[str, int]:
    """Sizes by name; raises InvalidArgument for anything that is not NAME=SIZE."""
    found = {}
    for item in given or ():
        # The names that exporters make up may have a = themselves.
        name, equals, size = item.rpartition("=")
        if not name or not equals or not size.isdecimal() or int(size) < 1:
            raise InvalidArgument(f"--dim {item!r}; expected NAME=SIZE, like batch=1")
        found[name] = int(size)
    return found


def parse_freeze(given: list[str] | None) -> dict[str, float | list[float]]:
    """Values by input: one number, or several with commas between them."""
    found: dict[str, float | list[float]] = {}
    for item in given or ():
        name, equals, text = item.rpartition("=")
        try:
            numbers = [_number(word) for word in text.split(",")]
        except ValueError:
            numbers = []
        if not name or not equals or not numbers:
            raise InvalidArgument(f"--freeze {item!r}; expected INPUT=VALUE, like sr=16000 or size=640,480")
        found[name] = numbers[0] if len(numbers) == 1 else numbers
    return found


def _number(word: str) -> float:
    """A whole number, a fraction, or a truth value."""
    truth = {"true": 1, "false": 0}.get(word.strip().lower())
    if truth is not None:
        return truth
    try:
        return int(word)
    except ValueError:
        return float(word)
