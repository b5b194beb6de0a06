"""Faults to order, for tests: they reach whoever ordered them, and end with them."""

from __future__ import annotations

import enum

from openhtp.core import status as st
from openhtp.core.errors import ExecutionError, UnsupportedFeature
from openhtp.device.loop import Loop
from openhtp.device.sessions import Session, find
from openhtp.rpc import messages as ms
from openhtp.sched.events import HoldChanged


class FaultReach(enum.Enum):
    """Whom they reach: all of a device that is private; on a shared one the sender's own session, or nobody."""

    DEVICE = "device"
    SESSION = "session"
    NOBODY = "nobody"


def inject(session: Session, request: ms.Inject, reach: FaultReach, loop: Loop) -> None:
    """Stand still or go on, or let the next execution of a graph fail after a step."""
    if reach is FaultReach.NOBODY:
        raise UnsupportedFeature(
            "faults cannot be injected into a device that is shared; use one without a name, or start it with"
            " `openhtp device start --allow-faults`"
        )
    if request.fail_graph is not None:
        graph = find(session.graphs, request.fail_graph, "graph")
        error = ExecutionError(f"injected failure at step {request.fail_step}", st.for_code(request.fail_status))
        graph.fault = request.fail_step, error
    if request.hold is None:
        return
    if reach is FaultReach.DEVICE:
        loop.held = request.hold
        return
    # A job that was started and stands still would keep the resources from everyone: here, none is started.
    session.held = request.hold
    for number, graph in list(session.graphs.items()):
        if graph.switch is None:  # else it is held anyway
            loop.handle(HoldChanged(t=loop.clock.now(), client=number, held=request.hold))
    for context in session.contexts.values():
        if context.switcher is not None:
            loop.later(context.switcher.advance)
