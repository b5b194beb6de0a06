"""Memory that a client shares with the device."""

from __future__ import annotations

from openhtp.device.requests.table import Asked, handles
from openhtp.device.sessions import find
from openhtp.rpc import messages as ms


@handles(ms.RegisterMemory, takes_descriptor=True)
def register(asked: Asked, request: ms.RegisterMemory) -> ms.Reply:
    """Map it, if the session may hold as much."""
    context = find(asked.session.contexts, request.context, "context")
    buffer = asked.memory(request.nbytes)
    number = asked.core.new_number()
    try:
        asked.session.map(number, context, buffer)
    except BaseException:
        buffer.close()
        raise
    return ms.Reply(value=number)


@handles(ms.DeregisterMemory)
def deregister(asked: Asked, request: ms.DeregisterMemory) -> ms.Reply:
    """Unmap it."""
    asked.session.unmap(request.memory)
    return ms.Reply()
