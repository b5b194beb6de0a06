"""Faults to order: a device that stands still, a step that fails, calls that meet what ``inject`` says."""

from __future__ import annotations

from contextlib import AbstractContextManager

from openhtp.core.faults import FaultPlan
from openhtp.core.status import Status
from openhtp.rpc import messages as ms
from openhtp.runtime.instruments.device_queries import ask, ask_about
from openhtp.runtime.instruments.injecting import injected
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.graph import Graph


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


def inject(faults: str) -> AbstractContextManager[FaultPlan]:
    """Let calls of this process meet faults while a block runs, as the variable ``OPENHTP_FAULTS`` does for good.

    ::

        with inject("ssr@graphExecute:3, slow@notify:50ms") as plan:
            ...
        assert [met.call for met in plan.met] == [3]

    ``docs/tools.md`` has the points and kinds. Calls are counted from the begin of the block.
    """
    return injected(faults)
