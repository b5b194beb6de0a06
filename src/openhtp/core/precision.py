"""How float graphs compute."""

from __future__ import annotations

import enum


class Precision(enum.StrEnum):
    """The HTP rounds every result to half precision unless told otherwise."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"
