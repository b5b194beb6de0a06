"""Types of the arguments that option tables stand for. Made by ``make docs``: edit the tables."""

from __future__ import annotations

from typing import TypedDict

from openhtp.core.priority import Priority


class GraphArguments(TypedDict, total=False):
    """Options of a graph."""

    priority: Priority | str | int | None
    vtcm_mb: int | None
    vtcm_bytes: int | None
    hvx_threads: int | None
    precision: str | None
    optimization_level: int | None
    core: int | None
    num_cores: int | None
