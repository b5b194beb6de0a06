"""For the tools of this package: what a device can be asked that the API has no call for."""

from __future__ import annotations

from collections.abc import Callable

from openhtp.hw.clocks import FULL
from openhtp.records.schematic import Schematic
from openhtp.rpc import messages as ms
from openhtp.runtime.objects.app import App
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.graph import Graph


def ask(device: Device, message: ms.Request) -> ms.Reply:
    """Ask a device."""
    return device._link.request(message)


def ask_about(runs: Graph | App, message: Callable[[int], ms.Request]) -> ms.Reply:
    """Ask the device of a graph or app about it; ``message`` is made from the number that it has there."""
    return runs.context._link.request(message(runs._number))


def number_of(graph: Graph) -> int:
    """The number that a graph has on its device, and in the device's trace."""
    return graph._number


def graphs_on(device: Device) -> list[Graph]:
    """All graphs of a device, of this process."""
    return [graph for context in list(device._contexts) for graph in context.graphs.values()]


def schematic_on(graph: Graph) -> Schematic | None:
    """What the chip runs for a loaded graph, op by op (modelled, at full clocks); None if that is not known."""
    modelled = None if graph._callee is None else graph._callee.modelled
    return modelled.schematic(FULL) if modelled is not None and modelled.is_known else None
