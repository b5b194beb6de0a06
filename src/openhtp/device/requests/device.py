"""Requests about the device as a whole: connect, describe, record, inject faults, vote on power, shut down."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from openhtp.core import status as st
from openhtp.core.errors import ExecutionError, InvalidArgument, UnsupportedFeature
from openhtp.device.requests.table import Asked, Sender, handles
from openhtp.device.sessions import FaultReach, find
from openhtp.device.tasks import Task
from openhtp.hw.perf_profiles import find_perf_profile
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import SharedBuffer
from openhtp.sched.events import HoldChanged

if TYPE_CHECKING:
    from openhtp.device.core import DeviceCore


def description(core: DeviceCore) -> dict[str, object]:
    """The device with all its sessions, and the clients that run or wait."""
    clients = [
        {
            "client": number,
            "running": bool(client.queue) and client.queue[0].share is not None,
            "waiting": sum(job.share is None for job in client.queue),
        }
        for number, client in core.loop.scheduler.clients.items()
        if client.queue
    ]
    return {
        "pid": os.getpid(),
        "device_id": core.device_id,
        "sessions": [session.describe() for session in core.sessions.values()],
        "power": core.power.describe(core.clock.now()),
        "clients": clients,
    }


@handles(ms.Inspect)
def describe(asked: Asked, request: ms.Inspect) -> ms.Reply:
    """Describe all sessions, for any client."""
    library = {} if asked.core.library is None else asked.core.library.describe()
    return ms.Reply(info=description(asked.core) | library)


@handles(ms.SetTrace)
def set_trace(asked: Asked, request: ms.SetTrace) -> ms.Reply:
    """Begin to record, or stop."""
    asked.core.record(enabled=request.enabled)
    return ms.Reply()


@handles(ms.ReadTrace)
def read_trace(asked: Asked, request: ms.ReadTrace) -> SharedBuffer:
    """Take the records out of the recording."""
    return SharedBuffer.holding([asked.core.recording.take()])


@handles(ms.Inject)
def inject_fault(asked: Asked, request: ms.Inject) -> ms.Reply:
    """Hold or resume executions, or let the next execution of a graph fail after a step."""
    session, loop, reach = asked.session, asked.core.loop, asked.core.faults
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
        return ms.Reply()
    if reach is FaultReach.DEVICE:
        loop.held = request.hold
        return ms.Reply()
    # A job that has started and stands still would block the resources for everyone. So no job is started here.
    session.held = request.hold
    for number, graph in list(session.graphs.items()):
        if graph.switch is None:  # a switched graph is held by its switcher
            loop.handle(HoldChanged(t=loop.clock.now(), client=number, held=request.hold))
    for context in session.contexts.values():
        if context.switcher is not None:
            loop.later(context.switcher.advance)
    return ms.Reply()


@handles(ms.Hello, sender=Sender.STRANGER, takes_descriptor=True)
def hello(asked: Asked, request: ms.Hello) -> ms.Reply:
    """Let a client in. A client of another version receives an error that says so."""
    if request.version != ms.PROTOCOL_VERSION:
        status = st.QNN_COMMON_ERROR_INCOMPATIBLE_BINARIES
        return ms.Reply(
            error=f"the client speaks protocol {request.version}, the device {ms.PROTOCOL_VERSION};"
            " both must come from the same openhtp version",
            status_name=status.name,
            status_code=status.code,
        )
    if asked.core.library is not None:
        asked.core.library.start()
    asked.host.add_duct(asked.descriptor())
    session = asked.host.open_session(
        request.label, shares_budget=request.shares_budget, pd_session=request.pd_session
    )
    at_once = asked.core.loop.scheduler.resources.graphs_at_once
    return ms.Reply(value=session.number, info={"pid": os.getpid(), "graphs_at_once": at_once})


@handles(ms.AddDuct, sender=Sender.CONNECTION, takes_descriptor=True)
def add_duct(asked: Asked, request: ms.AddDuct) -> ms.Reply:
    """Add a socket for one of the client's threads."""
    asked.host.add_duct(asked.descriptor())
    return ms.Reply()


@handles(ms.Shutdown, sender=Sender.CONNECTION)
def shut_down(asked: Asked, request: ms.Shutdown) -> ms.Reply:
    """Shut the device down."""
    asked.host.stop(now=request.now)
    return ms.Reply()


@handles(ms.CreatePowerConfig)
def create_power_config(asked: Asked, request: ms.CreatePowerConfig) -> ms.Reply:
    """Create an id under which to vote."""
    if request.device_id != 0:
        raise InvalidArgument(
            f"device_id is {request.device_id}; there is one device, 0",
            st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT,
        )
    number = asked.core.new_number()
    asked.core.power.create(number, asked.session.number, request.core)
    return ms.Reply(value=number)


@handles(ms.SetPowerConfig)
def change_votes(asked: Asked, request: ms.SetPowerConfig) -> ms.Reply | Task[None]:
    """Change votes, all of them or none. The vendor's library has one set of votes: the latest counts."""
    core, session, library = asked.core, asked.session, asked.core.library
    if request.hmx is not None:
        asked.refuse_library("HMX votes are not handed on to it", st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_UNSUPPORTED)
    core.power.set(session.number, request, core.clock.now(), busy=session.busy)
    session.staged = core.power.has_profile(session.number)
    if library is None:
        return ms.Reply()
    dcvs = request.dcvs if request.profile is None else find_perf_profile(request.profile).dcvs
    vote = functools.partial(
        library.vote,
        dcvs=dcvs,
        rpc_latency_us=request.rpc_control_latency_us,
        rpc_polling_us=request.rpc_polling_us,
    )
    return Task("voting", session, work=lambda task: vote(), finish=lambda result: ms.Reply())


@handles(ms.DestroyPowerConfig)
def destroy_power_config(asked: Asked, request: ms.DestroyPowerConfig) -> ms.Reply:
    """Remove an id with all its votes."""
    core, session = asked.core, asked.session
    core.power.destroy(session.number, request.config, core.clock.now())
    session.staged = core.power.has_profile(session.number)
    return ms.Reply()
