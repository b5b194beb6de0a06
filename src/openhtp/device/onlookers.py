"""Onlookers: programs of the same user that ask, at a device's window, what it is doing."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable

from openhtp.device.connection import Connection, Entrance
from openhtp.device.core import DeviceCore
from openhtp.device.requests.device import description
from openhtp.rpc import channel, messages as ms
from openhtp.rpc.channel import Disconnected, ProtocolError
from openhtp.rpc.windows import Window

log = logging.getLogger(__name__)

# Further onlookers are turned away.
MOST = 16

Watch = Callable[[int, Callable[[int], None]], None]


class Onlookers:
    """Answers onlookers. They are no clients: they hold nothing, and the device does not stay for them."""

    def __init__(
        self,
        window: Window,
        core: DeviceCore,
        about: dict[str, object],
        watch: Watch,
        unwatch: Callable[[int], None],
    ) -> None:
        """``about`` is added to the core's own description."""
        self._window = window
        self._core = core
        self._about = about
        self._watch, self._unwatch = watch, unwatch
        self._there: dict[int, Connection] = {}
        self._entrance = Entrance(window.listener, self._adopt)
        watch(window.listener.fileno(), self._on_call)

    def close(self) -> None:
        """Close the window and send all onlookers away."""
        for connection in list(self._there.values()):
            self._drop(connection)
        self._unwatch(self._window.listener.fileno())
        self._window.close()

    def _on_call(self, events: int) -> None:
        if (
            not self._entrance.let_in()
        ):  # onlookers cannot even be turned away: shut the window, clients come first
            self.close()

    def _adopt(self, sock: socket.socket) -> None:
        _, uid = channel.peer_credentials(sock)
        if uid != os.getuid() or len(self._there) >= MOST:
            log.info("turned away an onlooker of user %d", uid)
            sock.close()
            return
        sock.setblocking(False)
        connection = self._there[sock.fileno()] = Connection(sock)
        self._watch(sock.fileno(), lambda _: self._serve(connection))

    def _serve(self, connection: Connection) -> None:
        try:
            data, descriptors = channel.receive(connection.control)
            channel.close_all(descriptors)
            request = ms.decode_request(data)
            if not isinstance(request, ms.Inspect):
                raise ProtocolError(f"{type(request).__name__} at the window, which only answers Inspect")
            self._core.executions.line_up()  # so that all that waits is to be seen with the scheduler
            connection.reply(ms.Reply(info={**self._about, **description(self._core)}), request.number)
        except Disconnected:
            self._drop(connection)
        except Exception as error:
            log.info("sending away an onlooker: %s", error)
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        fd = connection.control.fileno()
        if self._there.pop(fd, None) is not None:
            self._unwatch(fd)
            connection.control.close()
