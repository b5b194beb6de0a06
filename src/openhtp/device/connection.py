"""What the device's process keeps about a client: its sockets, and what could not be sent on them yet."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable

import msgspec

from openhtp.device.answers import Answer
from openhtp.device.outlet import Outlet
from openhtp.device.sessions import Session
from openhtp.rpc import channel, messages as ms
from openhtp.rpc.shm import SharedBuffer


class Duct:
    """One data socket of a client and what could not be sent on it yet."""

    def __init__(self, sock: socket.socket, on_news: Callable[[Duct], None]) -> None:
        self.sock = sock
        self.outlet = Outlet(lambda: on_news(self))
        self.unsent: deque[bytes] = deque()
        self.closed = False


class Connection:
    """One client: its control socket and its ducts. The first duct is shared, the others serve one thread each."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.ducts: list[Duct] = []
        self.session: Session | None = None
        self.closed = False
        # How many frames may still be taken in this turn of the loop.
        self.turn = self.share = 0
        self.early_cancels: dict[int, None] = {}

    def reply(self, answer: Answer, number: int) -> None:
        """Answer the request with this number; what is too long for a message goes in shared memory."""
        if not isinstance(answer, ms.Reply):
            channel.send(self.control, ms.encode(ms.Reply(number=number, value=answer.nbytes)), (answer.fd,))
            return
        data = ms.encode(msgspec.structs.replace(answer, number=number))
        if len(data) <= channel.MAX_MESSAGE:
            channel.send(self.control, data)
            return
        with contextlib.closing(SharedBuffer.holding([data])) as beside:
            channel.send(self.control, ms.encode(ms.Reply(number=number, moved=True)), (beside.fd,))
