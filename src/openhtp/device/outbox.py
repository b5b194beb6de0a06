"""Completions go out: held back for a moment to share a packet, and kept while a client does not read."""

from __future__ import annotations

import select
from collections.abc import Callable

from openhtp.device.connection import Connection, Lane
from openhtp.rpc.channel import ProtocolError

# Completions that may share one packet.
RECORDS_PER_PACKET = 8
# A client that does not read its completions is given this much before it is let go.
MAX_UNSENT_PACKETS = 100_000

# Does something for a client; what goes wrong then ends that client's connection.
Guard = Callable[[Connection, Callable[[Connection], None]], None]


class Outbox:
    """What is to be sent on the lanes of all clients."""

    def __init__(self, epoll: select.epoll, guard: Guard, on_end: Callable[[Connection, Lane], None]) -> None:
        self._epoll = epoll
        self._guard = guard
        self._on_end = on_end
        self._pending: dict[Lane, Connection] = {}

    def tell(self, connection: Connection, lane: Lane) -> None:
        """There is news on a lane: send it, or hold it back until ``flush``."""
        outlet = lane.outlet
        if len(outlet.records) >= RECORDS_PER_PACKET or outlet.extras:
            self._pending.pop(lane, None)
            self._guard(connection, lambda c: self._send_news(c, lane))
        else:
            self._pending[lane] = connection

    def flush(self) -> None:
        """Send all that was held back."""
        while self._pending:
            lane, connection = self._pending.popitem()
            self._guard(connection, lambda c, lane=lane: self._send_news(c, lane))  # type: ignore[misc]

    def forget(self, lane: Lane) -> None:
        """A lane has ended."""
        self._pending.pop(lane, None)

    def send_unsent(self, connection: Connection, lane: Lane) -> None:
        """The client reads again."""
        while lane.unsent:
            try:
                lane.sock.send(lane.unsent[0])
            except BlockingIOError:
                return
            except OSError:
                self._on_end(connection, lane)
                return
            lane.unsent.popleft()
        self._epoll.modify(lane.sock.fileno(), select.EPOLLIN)

    def _send_news(self, connection: Connection, lane: Lane) -> None:
        for packet in lane.outlet.packets():
            if not lane.closed:
                self._send(connection, lane, packet)

    def _send(self, connection: Connection, lane: Lane, packet: bytes) -> None:
        if lane.unsent:
            lane.unsent.append(packet)
            if len(lane.unsent) > MAX_UNSENT_PACKETS:
                raise ProtocolError("the client does not read its completions")
            return
        try:
            lane.sock.send(packet)
        except BlockingIOError:
            # A client that sleeps must not put the device to sleep: go on when it reads again.
            lane.unsent.append(packet)
            self._epoll.modify(lane.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
        except OSError:
            self._on_end(connection, lane)
