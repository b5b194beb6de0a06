"""Faults to order: a device that stands still, a step that fails. They happen on the device, for real."""

from __future__ import annotations

from openhtp.core.status import Status
from openhtp.rpc import messages as ms
from openhtp.runtime.device import Device
from openhtp.runtime.graph import Graph
from openhtp.runtime.side_door import ask, ask_about


def hold(device: Device) -> None:
    """Stop the device from computing; it still takes requests, and timers still run.

    A device that is shared refuses this, unless it was started with ``openhtp device start --allow-faults``: then
    no execution of this client is started, and the others go on.
    """
    ask(device, ms.Inject(hold=True))


def release(device: Device) -> None:
    """Let a held device go on."""
    ask(device, ms.Inject(hold=False))


def fail_next(graph: Graph, status: Status, *, step: int = 0) -> None:
    """Make the next execution of a graph end with ``status`` after a step."""
    ask_about(graph, lambda number: ms.Inject(fail_graph=number, fail_step=step, fail_status=status.code))
