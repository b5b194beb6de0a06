"""Checks of values from callers, without trust: none of these raises, whatever the value is."""

from __future__ import annotations

import enum
import itertools
import math
import numbers
import operator
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

_SHOWN = 200
_SPOKEN_WITH_A_VOWEL = re.compile(r"(?i)[aeio]|u(?!int|ni|se)|ndarray")
_E = TypeVar("_E", bound=enum.IntEnum)


def whole_number(value: object) -> int | None:
    """The value as an int if it is a whole number of Python's or numpy's; otherwise None, also for booleans."""
    if isinstance(value, bool):
        return None
    try:
        return int(operator.index(value))  # type: ignore[arg-type]
    except Exception:
        return None


def member_of(members: type[_E], value: object, prefix: str = "") -> _E | None:
    """The member that is meant: by itself, by name in any case, with or without a prefix, or by number."""
    if isinstance(value, str):
        return members.__members__.get(value.upper().removeprefix(prefix))
    number = whole_number(value)
    return members(number) if number is not None and number in members._value2member_map_ else None


def real_number(value: object) -> float | None:
    """The value as a float if it is a finite number of Python's or numpy's; otherwise None, also for booleans."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def items_of(value: object, most: int | None = None) -> list[Any] | None:
    """The items of a sequence, up to ``most`` as it may never end; None for text, mappings and other values."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping):
        return None
    try:
        items = iter(value)  # type: ignore[call-overload]
    except Exception:
        return None
    return list(itertools.islice(items, most))


def path_of(value: object) -> Path | None:
    """The path that text or a path object names; None for anything else, and for names that no file can have."""
    try:
        text = os.fspath(value)  # type: ignore[call-overload]
    except Exception:
        return None
    if not isinstance(text, str) or "\0" in text or not is_encodable(text):
        return None
    return Path(text)


def is_encodable(text: str) -> bool:
    """Whether the text can be sent and stored: a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_showable(value: object) -> bool:
    """Whether the value has a representation: a number of 5000 digits has none."""
    try:
        repr(value)
    except Exception:
        return False
    return True


def shown(value: object) -> str:
    """The value as messages show it: never long, and its type if it has no representation."""
    if not is_showable(value):
        return type_in_words(value)
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({type(value).__name__})"


def type_in_words(value: object) -> str:
    """The type of a value with its article: ``an int``, ``an ndarray``, ``a uint8``."""
    name = type(value).__name__
    return f"{'an' if _SPOKEN_WITH_A_VOWEL.match(name) else 'a'} {name}"
