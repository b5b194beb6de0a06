"""For the tools of this package: questions to a device for which the API has no call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from openhtp.hw.clocks import FULL
from openhtp.records.schematic import Schematic
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import unchangeable
from openhtp.runtime.objects.app import App
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.graph import Graph


def ask(device: Device, message: ms.Request) -> ms.Reply:
    """Ask a device."""
    return device.link.request(message)


def ask_about(runs: Graph | App, message: Callable[[int], ms.Request]) -> ms.Reply:
    """Ask a device about a graph or app on it; ``message`` makes the request from its number there."""
    return runs.context.opened.link.request(message(runs.number if isinstance(runs, App) else number_of(runs)))


def library_binary(context: Context, *, weight_sharing: bool = False) -> bytes:
    """The graphs of a context as the vendor's library saves them; the context's device must use that library."""
    return context.opened.link.fetch(ms.ExportBinary(context=context.opened.number, weight_sharing=weight_sharing))


def open_library_binary(device: Device, blob: bytes) -> Context:
    """A context from a binary that the vendor's library saved, on a device that uses that library."""
    with contextlib.closing(unchangeable(len(blob), [(0, blob)])) as memory:
        ours = device.link.fetch(ms.ImportBinary(), (memory.number,))
    return device.create_context_from_binary(ours)


def load_only(device: Device, binary: bytes, opening: ms.CreateContext) -> None:
    """Have a device load the first graph of a binary in a context of its own, and free that context again."""
    wanted = [ms.WantedGraph(place=0, priority=opening.priority)]
    with contextlib.closing(unchangeable(len(binary), [(0, binary)])) as memory:
        request = ms.LoadGraphs(context=0, nbytes=len(binary), graphs=wanted, opening=opening)
        reply = device.link.request(request, (memory.number,))
    device.link.request(ms.FreeContext(context=reply.value))


def number_of(graph: Graph) -> int:
    """The number that a graph has on its device, and in the device's trace."""
    assert graph.loaded is not None  # it is finalized
    return graph.loaded.number


def graphs_on(device: Device) -> list[Graph]:
    """All graphs that this process has on a device."""
    return [graph for context in list(device.contexts) for graph in context.graphs.values()]


def schematic_on(graph: Graph) -> Schematic | None:
    """The ops that the chip runs for a loaded graph (modelled, at full clocks); None if they are not known."""
    modelled = None if graph.loaded is None else graph.loaded.callee.modelled
    return modelled.schematic(FULL) if modelled is not None and modelled.is_known else None
