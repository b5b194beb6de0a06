"""A data socket on which one thread waits for its own execution."""

from __future__ import annotations

import select
import socket

from openhtp.rpc import channel
from openhtp.rpc.channel import Disconnected
from openhtp.rpc.looking import Looking

# select() knows no higher descriptors.
_SELECTABLE = 1024


class Duct:
    """Used by one thread at a time."""

    __slots__ = ("_looking", "_view", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._looking = Looking()
        self._view = memoryview(bytearray(channel.MAX_MESSAGE))

    def receive(self) -> memoryview:
        """The next packet, valid until the next call."""
        return self._packet(self.sock.recv_into(self._view))

    def watch(self, polling_ns: int, sleep_ns: int = 0) -> memoryview:
        """The same, looking for it all the time for so long: being woken takes longer than a short graph runs.

        With ``sleep_ns``, sleep that long first, or until the packet comes.
        """
        if sleep_ns and self.sock.fileno() < _SELECTABLE:
            select.select([self.sock], [], [], sleep_ns / 1e9)
        looking, receive, view = self._looking, self.sock.recv_into, self._view
        look = looking.begin(polling_ns)
        while look:
            try:
                return self._packet(receive(view, 0, socket.MSG_DONTWAIT))
            except BlockingIOError:
                look = looking.go_on()
        return self.receive()

    def _packet(self, count: int) -> memoryview:
        if count == 0:
            raise Disconnected("end of connection")
        return self._view[:count]
