"""A device on a thread of the client's own process: the same server and core as in a process of its own."""

from __future__ import annotations

import socket
import threading

from openhtp.core.threads import OwnThread
from openhtp.device.config import DeviceConfig
from openhtp.device.core import DeviceCore, build_core
from openhtp.device.direct import OrderRow
from openhtp.device.seat import Seat
from openhtp.device.server import Server
from openhtp.device.sessions import FaultReach
from openhtp.rpc import channel


class ThreadHost:
    """Serves until it is stopped. Threads of the client may compute on it, too: see ``seat``."""

    def __init__(self, config: DeviceConfig, *, shared: bool) -> None:
        """``shared`` says that clients that do not know each other use this device."""
        self.config = config
        self.core: DeviceCore = build_core(config)
        self.seat = Seat(self.core.clock.now)
        if shared:
            self.core.faults = FaultReach.SESSION
        self._server = Server(self.core, keep=True, seat=self.seat)
        self.row = OrderRow(self.core, self.seat)
        self._thread = OwnThread(self._serve, name="openhtp-npu")
        self._thread.start()

    def connect(self) -> socket.socket:
        """The client's end of a new control socket."""
        ours, theirs = channel.socket_pair()
        self.core.post(lambda: self._server.adopt(theirs))
        return ours

    def stop(self) -> None:
        """End the thread; clients that are still connected are cut off."""
        self.core.post(lambda: self._server.stop(now=True))
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        self._server.serve()
        self._server.dispose()

    def leave_to_parent(self) -> None:
        """In the child of a fork there is no such thread: close the copies of its sockets."""
        self._server.leave_to_parent()
