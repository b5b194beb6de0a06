"""Lets one listener know of the devices and graphs of this process while they come and go."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from openhtp.runtime.objects.device import Device
    from openhtp.runtime.objects.graph import Graph


class Watcher(Protocol):
    """Who is told. What it does must not raise."""

    def device_made(self, device: Device) -> None:
        """It can be used from now on."""

    def device_leaves(self, device: Device) -> None:
        """It can be used for the last time."""

    def graph_loaded(self, graph: Graph) -> None:
        """It can be executed from now on."""


class Nobody:
    """Nobody wants to know."""

    def device_made(self, device: Device) -> None:
        """Nothing to do."""

    def device_leaves(self, device: Device) -> None:
        """Nothing to do."""

    def graph_loaded(self, graph: Graph) -> None:
        """Nothing to do."""


watcher: Watcher = Nobody()


@contextlib.contextmanager
def watched(by: Watcher) -> Iterator[None]:
    """Tell ``by`` while the block runs."""
    global watcher  # noqa: PLW0603
    watcher = by
    try:
        yield
    finally:
        watcher = Nobody()
