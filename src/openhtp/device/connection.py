"""How clients connect, and what the device's process keeps for each: its sockets and its unsent messages."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable

import msgspec

from openhtp.device.answers import Answer
from openhtp.device.jobs import Outlet
from openhtp.device.sessions import Session
from openhtp.rpc import channel, messages as ms
from openhtp.rpc.shm import SharedBuffer


class ServedDuct:
    """One data socket of a client, with the packets that could not be sent on it yet."""

    def __init__(self, sock: socket.socket, on_news: Callable[[ServedDuct], None]) -> None:
        self.sock = sock
        self.outlet = Outlet(lambda: on_news(self))
        self.unsent: deque[bytes] = deque()
        self.closed = False
        # Whether the client had many executions under way when it sent the latest one.
        self.has_many = False


class Connection:
    """One client: its control socket and its ducts. The first duct is shared, the others serve one thread each."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.ducts: list[ServedDuct] = []
        self.session: Session | None = None
        self.closed = False
        # How many frames may still be taken in this turn of the loop.
        self.turn = self.share = 0
        self.early_cancels: dict[int, None] = {}

    def reply(self, answer: Answer, number: int) -> None:
        """Answer the request with this number; an answer that is too long for a message goes in shared memory."""
        if not isinstance(answer, ms.Reply):
            channel.send(self.control, ms.encode(ms.Reply(number=number, value=answer.nbytes)), (answer.fd,))
            return
        data = ms.encode(msgspec.structs.replace(answer, number=number))
        if len(data) <= channel.MAX_MESSAGE:
            channel.send(self.control, data)
            return
        with contextlib.closing(SharedBuffer.holding([data])) as beside:
            channel.send(self.control, ms.encode(ms.Reply(number=number, moved=True)), (beside.fd,))


log = logging.getLogger(__name__)

# How long the door stays shut when clients cannot even be turned away.
REST_NS = 100_000_000

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
# The client has gone again, or a signal came: nothing needs to be done.
_NOBODY = (errno.EAGAIN, errno.ECONNABORTED, errno.EINTR, errno.EPROTO)


class Entrance:
    """Accepts clients. One descriptor is kept in reserve, to turn away clients that cannot be let in."""

    def __init__(self, listener: socket.socket, adopt: Callable[[socket.socket], None]) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._adopt = adopt
        self._reserve: int | None = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def let_in(self) -> bool:
        """Let one client in. False if that is impossible now and should be tried again only after a rest."""
        try:
            control, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _NOBODY:
                return True
            log.warning("a client cannot be let in: %s", error)
            return error.errno in _NO_DESCRIPTORS and self._turn_away()
        try:
            self._adopt(control)
        except Exception:
            log.exception("a client could not be let in")
            control.close()
        return True

    def _turn_away(self) -> bool:
        """Close the next client's connection; otherwise the client would wait and the listener stay ready."""
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
        try:
            control, _ = self._listener.accept()
            control.close()
            self._reserve = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return error.errno in _NOBODY
        return True
