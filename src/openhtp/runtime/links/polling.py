"""How a thread waits for an execution: asleep, or polling for as long as its client's votes say.

Adaptive polling learns how long each graph takes. For a long graph the thread sleeps until shortly before the end
and polls only then: the core is free meanwhile, and still no thread has to be woken at the end.
"""

from __future__ import annotations

import select
import socket
import time

from openhtp.core.units import US
from openhtp.rpc import channel, frames
from openhtp.rpc.channel import Disconnected
from openhtp.rpc.looking import UNASKED_NS, Looking

# The part of an execution that is slept through, and the weight of a new length against the old.
_SLEPT = 0.9
_NEWS = 0.25
# The lengths of this many graphs are kept.
_MAX_KNOWN = 1024


# select() cannot watch higher descriptors.
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
        """The next packet, polled for ``polling_ns``: being woken takes longer than a short graph runs.

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


class Polling:
    """One client's way of waiting. Changed by votes, used by all its threads."""

    __slots__ = ("adaptive_ns", "lengths", "polling_ns")

    def __init__(self) -> None:
        self.polling_ns = UNASKED_NS
        self.adaptive_ns = 0
        self.lengths: dict[int, float] = {}

    def set(self, polling_us: int | None, adaptive_us: int) -> None:
        """Poll for ``polling_us`` (None: no vote); sleep first if executions take ``adaptive_us`` (0: never)."""
        self.adaptive_ns = adaptive_us * US
        self.polling_ns = UNASKED_NS if polling_us is None else polling_us * US

    def receive(self, duct: Duct, frame: bytes) -> memoryview:
        """The next packet of a duct on which this frame was sent; only called while polling is on."""
        if not self.adaptive_ns:
            return duct.watch(self.polling_ns)
        graph = frames.read_head(frame).graph
        began = time.monotonic_ns()
        packet = duct.watch(self.polling_ns, self.sleep_ns(graph))
        self.learn(graph, time.monotonic_ns() - began)
        return packet

    def sleep_ns(self, graph: int) -> int:
        """How long to sleep before polling: 0 for a graph that is short or not known yet."""
        length = self.lengths.get(graph, 0.0)
        return int(length * _SLEPT) if length >= self.adaptive_ns else 0

    def learn(self, graph: int, took_ns: int) -> None:
        """Learn how long an execution took."""
        known = self.lengths
        if graph not in known and len(known) >= _MAX_KNOWN:
            known.clear()
        before = known.get(graph, took_ns)
        known[graph] = before + _NEWS * (took_ns - before)
