"""Coming in, and more ways in."""

from __future__ import annotations

import os

from openhtp.core import status as st
from openhtp.device.requests.table import Asked, Sender, handles
from openhtp.rpc import messages as ms


@handles(ms.Hello, sender=Sender.STRANGER, takes_descriptor=True)
def hello(asked: Asked, request: ms.Hello) -> ms.Reply:
    """A client comes. One of another version is told so, and may go."""
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
    session = asked.host.open_session(request.label, shares_budget=request.shares_budget)
    return ms.Reply(value=session.number, info={"pid": os.getpid()})


@handles(ms.AddDuct, sender=Sender.CONNECTION, takes_descriptor=True)
def add_duct(asked: Asked, request: ms.AddDuct) -> ms.Reply:
    """A thread of the client's wants a socket of its own."""
    asked.host.add_duct(asked.descriptor())
    return ms.Reply()


@handles(ms.Shutdown, sender=Sender.CONNECTION)
def shut_down(asked: Asked, request: ms.Shutdown) -> ms.Reply:
    """The device is no longer wanted."""
    asked.host.stop(now=request.now)
    return ms.Reply()
