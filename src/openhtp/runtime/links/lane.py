"""A data socket on which one thread waits for its own execution."""

from __future__ import annotations

import os
import select
import socket
import time

from openhtp.rpc import channel
from openhtp.rpc.channel import Disconnected

# With one core, looking would keep the device from running at all.
_MAY_POLL = len(os.sched_getaffinity(0)) > 1
# From here on, who polls lets others have the core between two looks: one of them may be the device.
_POLITE_AFTER_NS = 100_000
# select() knows no higher descriptors.
_SELECTABLE = 1024


class Lane:
    """Used by one thread at a time."""

    __slots__ = ("_view", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._view = memoryview(bytearray(channel.MAX_MESSAGE))

    def receive(self) -> memoryview:
        """The next packet, valid until the next call."""
        return self._packet(self.sock.recv_into(self._view))

    def watch(self, polling_ns: int, sleep_ns: int = 0) -> memoryview:
        """The same, looking for it all the time for so long: being woken takes longer than a short graph runs.

        With ``sleep_ns``, sleep that long first, or until the packet comes.
        """
        if not _MAY_POLL:
            return self.receive()
        if sleep_ns and self.sock.fileno() < _SELECTABLE:
            select.select([self.sock], [], [], sleep_ns / 1e9)
        receive, view, now = self.sock.recv_into, self._view, time.monotonic_ns
        began = now()
        while True:
            try:
                return self._packet(receive(view, 0, socket.MSG_DONTWAIT))
            except BlockingIOError:
                looked = now() - began
            if looked >= polling_ns:
                return self.receive()
            if looked >= _POLITE_AFTER_NS:
                os.sched_yield()

    def _packet(self, count: int) -> memoryview:
        if count == 0:
            raise Disconnected("end of connection")
        return self._view[:count]
