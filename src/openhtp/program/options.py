"""Options of one graph that travel with its program."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from openhtp.core.priority import Priority


class Precision(enum.Enum):
    """How float graphs compute: the HTP rounds every result to half precision unless told otherwise."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """What the client chose for a graph. None leaves the choice to the device."""

    priority: Priority = Priority.NORMAL
    vtcm_bytes: int | None = None
    hvx_threads: int | None = None
    precision: Precision = Precision.FLOAT16
    optimization_level: int = 2
    num_cores: int = 1
