"""Types of the arguments that option tables stand for. Made by ``make docs``: edit the tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from openhtp.core.priority import Priority


class DeviceArguments(TypedDict, total=False):
    """Options of a device."""

    soc: str | int
    name: str | None
    platform: str
    policy: str
    threads: int
    parallel_graphs: bool
    vtcm_windowing: bool
    transport: str


class ContextArguments(TypedDict, total=False):
    """Options of a context."""

    queue_depth: int
    priority: Priority | str | int | None
    enable_graphs: Iterable[str] | None


class GraphArguments(TypedDict, total=False):
    """Options of a graph."""

    priority: Priority | str | int | None
    vtcm_mb: int | None
    vtcm_bytes: int | None
    hvx_threads: int | None
    precision: str
    optimization_level: int
    core: int
    num_cores: int
