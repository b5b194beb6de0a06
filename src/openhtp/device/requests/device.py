"""The device as a whole: what is on it, what it recorded, and faults to order."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from openhtp.device.faults import inject
from openhtp.device.requests.table import Asked, handles
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import SharedBuffer

if TYPE_CHECKING:
    from openhtp.device.core import DeviceCore


def description(core: DeviceCore) -> dict[str, object]:
    """The device with all its sessions, and who runs or waits."""
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
        "sessions": [session.describe() for session in core.sessions.values()],
        "power": core.power.describe(core.clock.now()),
        "clients": clients,
    }


@handles(ms.Inspect)
def describe(asked: Asked, request: ms.Inspect) -> ms.Reply:
    """All sessions, whoever asks."""
    library = {} if asked.core.library is None else asked.core.library.describe()
    return ms.Reply(info=description(asked.core) | library)


@handles(ms.SetTrace)
def set_trace(asked: Asked, request: ms.SetTrace) -> ms.Reply:
    """Begin to record, or stop."""
    asked.core.record(enabled=request.enabled)
    return ms.Reply()


@handles(ms.ReadTrace)
def read_trace(asked: Asked, request: ms.ReadTrace) -> SharedBuffer:
    """What was recorded, and no longer is."""
    return SharedBuffer.holding([asked.core.recording.take()])


@handles(ms.Inject)
def inject_fault(asked: Asked, request: ms.Inject) -> ms.Reply:
    """Something goes wrong, for whoever asked for it."""
    inject(asked.session, request, asked.core.faults, asked.core.loop)
    return ms.Reply()
