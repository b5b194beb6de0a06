"""What callers give, looked at without trust: none of these raises, whatever the value is."""

from __future__ import annotations

import math
import operator

import numpy as np

_SHOWN = 200


def whole_number(value: object) -> int | None:
    """The value as an int if it is a whole number of Python's or numpy's; None for all else, booleans included."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return int(operator.index(value))  # type: ignore[arg-type]
    except Exception:
        return None


def real_number(value: object) -> float | None:
    """The value as a float if it is a finite number of Python's or numpy's; None for all else and booleans."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def is_encodable(text: str) -> bool:
    """Whether the text can be sent and stored: a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: object) -> str:
    """The value as messages show it: never long, also for what has no representation (a number of 5000 digits)."""
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({type(value).__name__})"
