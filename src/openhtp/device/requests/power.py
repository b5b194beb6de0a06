"""Power votes: made, changed and withdrawn."""

from __future__ import annotations

import functools

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument
from openhtp.device.requests.table import Asked, handles
from openhtp.device.tasks import Task
from openhtp.hw.perf_profiles import find_perf_profile
from openhtp.rpc import messages as ms


@handles(ms.CreatePowerConfig)
def create(asked: Asked, request: ms.CreatePowerConfig) -> ms.Reply:
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
def change(asked: Asked, request: ms.SetPowerConfig) -> ms.Reply | Task[None]:
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
def destroy(asked: Asked, request: ms.DestroyPowerConfig) -> ms.Reply:
    """Remove an id with all its votes."""
    core, session = asked.core, asked.session
    core.power.destroy(session.number, request.config, core.clock.now())
    session.staged = core.power.has_profile(session.number)
    return ms.Reply()
