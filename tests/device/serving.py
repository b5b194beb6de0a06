"""A device's server on a thread of the test's own process, so that a test can break it from within."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from openhtp.device.config import DeviceConfig
from openhtp.device.core import build_core
from openhtp.device.server import Server
from openhtp.device.sessions import FaultReach
from openhtp.rpc import rendezvous
from tests.waiting import PATIENCE_S

NAME = "here"


@contextmanager
def serving(reach: FaultReach = FaultReach.NOBODY, config: DeviceConfig | None = None) -> Iterator[Server]:
    """Serve under NAME. The runtime directory must be the test's own."""
    core = build_core(config or DeviceConfig())
    core.faults = reach
    with rendezvous.locked():
        listener = rendezvous.listen(NAME)
    server = Server(core, door=rendezvous.Door(NAME, listener), keep=True)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
        assert thread.is_alive(), "the loop has ended"
    finally:
        server._on_signal(0, None)
        thread.join(PATIENCE_S)
        for connection in list(server._connections.values()):
            server._drop(connection)
    assert not thread.is_alive()


def settled(server: Server) -> None:
    """Wait until the loop has come round, with nothing left to close."""
    for _ in range(1000):
        done = threading.Event()
        server._post(done.set)
        assert done.wait(PATIENCE_S)
        if not server.core.closing:
            return
    raise AssertionError("sessions are still being closed")
