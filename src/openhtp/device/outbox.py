"""Sends completions: holds them back briefly to share a packet, and keeps them while a client does not read."""

from __future__ import annotations

import select
from collections.abc import Callable

from openhtp.device.connection import Connection, ServedDuct
from openhtp.rpc import frames
from openhtp.rpc.channel import ProtocolError

# Completions that may share one packet: each packet wakes the client once.
RECORDS_PER_PACKET = 16
_FULL_BYTES = RECORDS_PER_PACKET * frames.RECORD.size
# A client that leaves more packets than this unread is disconnected.
MAX_UNSENT_PACKETS = 100_000

# Does something for a client; an error then ends that client's connection.
Guard = Callable[[Connection, Callable[[Connection], None]], None]


class Outbox:
    """Sends news on the ducts of all clients."""

    def __init__(
        self, epoll: select.epoll, guard: Guard, on_end: Callable[[Connection, ServedDuct], None]
    ) -> None:
        self._epoll = epoll
        self._guard = guard
        self._on_end = on_end
        # Ducts with news that is held back.
        self.pending: dict[ServedDuct, Connection] = {}

    def tell(self, connection: Connection, duct: ServedDuct) -> None:
        """There is news on a duct: send it, or hold it back until ``flush``."""
        outlet = duct.outlet
        if len(outlet.records) >= _FULL_BYTES or outlet.extras:
            self.pending.pop(duct, None)
            self._guard(connection, lambda c: self._send_news(c, duct))
        else:
            self.pending[duct] = connection

    def flush_waited(self) -> None:
        """Send what was held back, except to clients that have many executions under way."""
        for duct in [duct for duct in self.pending if not duct.has_many]:
            connection = self.pending.pop(duct)
            self._guard(connection, lambda c, duct=duct: self._send_news(c, duct))  # type: ignore[misc]

    def flush(self) -> None:
        """Send all that was held back."""
        while self.pending:
            duct, connection = self.pending.popitem()
            self._guard(connection, lambda c, duct=duct: self._send_news(c, duct))  # type: ignore[misc]

    def forget(self, duct: ServedDuct) -> None:
        """A duct has ended."""
        self.pending.pop(duct, None)

    def send_unsent(self, connection: Connection, duct: ServedDuct) -> None:
        """The client reads again."""
        while duct.unsent:
            try:
                duct.sock.send(duct.unsent[0])
            except BlockingIOError:
                return
            except OSError:
                self._on_end(connection, duct)
                return
            duct.unsent.popleft()
        self._epoll.modify(duct.sock.fileno(), select.EPOLLIN)

    def _send_news(self, connection: Connection, duct: ServedDuct) -> None:
        for packet in duct.outlet.packets():
            if not duct.closed:
                self._send(connection, duct, packet)

    def _send(self, connection: Connection, duct: ServedDuct, packet: bytes) -> None:
        if duct.unsent:
            duct.unsent.append(packet)
            if len(duct.unsent) > MAX_UNSENT_PACKETS:
                raise ProtocolError("the client does not read its completions")
            return
        try:
            duct.sock.send(packet)
        except BlockingIOError:
            # A client that sleeps must not block the device: go on when the client reads again.
            duct.unsent.append(packet)
            self._epoll.modify(duct.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
        except OSError:
            self._on_end(connection, duct)
