"""How float graphs compute."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import numpy.typing as npt


class FloatPrecision(enum.StrEnum):
    """The HTP rounds every result to half precision unless told otherwise."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"


def half_rounded(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Numbers as the HTP computes with them; those that are too large become infinite, as they do there."""
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(np.float32)
