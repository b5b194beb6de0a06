"""A data socket on which one thread waits for its own execution."""

from __future__ import annotations

import os
import socket
import time

from openhtp.rpc import channel
from openhtp.rpc.channel import Disconnected

# How long a thread looks for its result before it goes to sleep. Being woken takes longer than a short graph runs;
# with one core, looking would keep the device from running at all.
_SPIN_NS = 60_000 if len(os.sched_getaffinity(0)) > 1 else 0


class Lane:
    """Used by one thread at a time."""

    __slots__ = ("_view", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._view = memoryview(bytearray(channel.MAX_MESSAGE))

    def receive(self) -> memoryview:
        """The next packet, valid until the next call."""
        receive, view = self.sock.recv_into, self._view
        until = time.monotonic_ns() + _SPIN_NS
        count = -1
        while count < 0 and time.monotonic_ns() < until:
            try:
                count = receive(view, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
        if count < 0:
            count = receive(view)
        if count == 0:
            raise Disconnected("end of connection")
        return view[:count]
