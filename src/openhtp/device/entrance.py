"""Where clients of a named device come in, also when there are no descriptors left to let them in with."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable

log = logging.getLogger(__name__)

# How long the door stays shut when not even turning somebody away is possible.
REST_NS = 100_000_000

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
# The client has gone again, or a signal came: nothing to see to.
_NOBODY = (errno.EAGAIN, errno.ECONNABORTED, errno.EINTR, errno.EPROTO)


class Entrance:
    """Accepts clients. One descriptor is kept in reserve, to tell those who cannot be let in."""

    def __init__(self, listener: socket.socket, adopt: Callable[[socket.socket], None]) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._adopt = adopt
        self._reserve: int | None = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def let_in(self) -> bool:
        """Let one client in. False if that cannot be done now and should be tried again only after a rest."""
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
        """Close the next client's connection: it would otherwise wait, and the door would never be quiet."""
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
