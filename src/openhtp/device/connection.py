"""What the device's process keeps about a client: its sockets, and what could not be sent on them yet."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable

from openhtp.device.outlet import Outlet
from openhtp.device.sessions import Session


class Lane:
    """One data socket of a client and what could not be sent on it yet."""

    def __init__(self, sock: socket.socket, on_news: Callable[[Lane], None]) -> None:
        self.sock = sock
        self.outlet = Outlet(lambda: on_news(self))
        self.unsent: deque[bytes] = deque()
        self.closed = False


class Connection:
    """One client: its control socket and its lanes. The first lane is shared, the others serve one thread each."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.lanes: list[Lane] = []
        self.session: Session | None = None
        self.closed = False
        # How many frames may still be taken in this turn of the loop.
        self.turn = self.share = 0
        self.early_cancels: dict[int, None] = {}
