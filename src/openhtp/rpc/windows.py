"""Windows: where any program of this user can see what a device is doing, and do nothing to it.

Every device process has one, named or not: a socket in the directory where named devices are met, which only this
user can enter. It answers ``Inspect`` and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openhtp.core.errors import QnnError
from openhtp.rpc import channel, messages as ms, rendezvous
from openhtp.rpc.channel import Disconnected, ProtocolError
from openhtp.rpc.messages import read_reply

log = logging.getLogger(__name__)

# How long all devices together may take to answer: each hears between two steps.
PATIENCE_S = 2.0
_SUFFIX = ".window"
_BACKLOG = 16


@dataclass(frozen=True)
class Window:
    """A device's own end: where others call, and the name of that place."""

    listener: socket.socket
    path: Path

    def close(self) -> None:
        """Close the window."""
        self.path.unlink(missing_ok=True)
        self.listener.close()


def open_window() -> Window | None:
    """A window of this process. None, and a line in the log, where there is no place for one."""
    try:
        _clear_away()
        path = rendezvous.directory() / f"{os.getpid()}-{secrets.token_hex(6)}{_SUFFIX}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # Others find it only once somebody listens there: they clear deaf sockets away.
            early = path.with_suffix(".new")
            with rendezvous.address(early) as where:
                listener.bind(where)
            listener.listen(_BACKLOG)
            early.rename(path)
        except BaseException:
            listener.close()
            raise
    except (QnnError, OSError) as error:
        log.info("nobody will see this device in `openhtp device status`: %s", error)
        return None
    return Window(listener, path)


def _clear_away() -> None:
    """Windows of devices that were killed: no such process is here, and nobody listens there."""
    for path in rendezvous.directory().glob(f"*{_SUFFIX}"):
        if not _is_alive(_pid_of(path)):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock, contextlib.suppress(OSError):
                sock.setblocking(False)
                try:
                    with rendezvous.address(path) as where:
                        sock.connect(where)
                except ConnectionRefusedError:
                    path.unlink()


def _is_alive(pid: int) -> bool:
    """Whether there is such a process, and more of it than the record that its parent has yet to read."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1]
    except OSError:
        return False
    return state not in b"ZX"


def _pid_of(path: Path) -> int:
    """The process that a window's name tells of; 0 if it tells of none."""
    word = path.name.partition("-")[0]
    return int(word) if word.isdecimal() and word.isascii() else 0


def look(patience_s: float = PATIENCE_S) -> list[dict[str, Any]]:
    """What every device of this user is doing now. One that does not answer is there with its ``pid`` alone."""
    asked: dict[int, tuple[socket.socket, int]] = {}
    deaf: list[dict[str, Any]] = []
    try:
        for path in sorted(rendezvous.directory().glob(f"*{_SUFFIX}")):
            try:
                called = _call(path)
            except BlockingIOError:  # so many have called before that no more are put through
                deaf.append({"pid": _pid_of(path)})
                continue
            if called is not None:
                asked[called[0].fileno()] = called
        seen = dict(_answers(asked, patience_s))
        return deaf + [seen.get(fd) or {"pid": pid} for fd, (_, pid) in asked.items() if seen.get(fd) != {}]
    finally:
        for sock, _ in asked.values():
            sock.close()


def _call(path: Path) -> tuple[socket.socket, int] | None:
    """Ask at a window; None if there is nobody behind it, whose window is then cleared away."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.setblocking(False)
        with rendezvous.address(path) as where:
            sock.connect(where)
        pid, uid = channel.peer_credentials(sock)
        if uid == os.getuid():
            channel.send(sock, ms.encode(ms.Inspect(number=1)))
            return sock, pid
        log.warning("user %d listens at %s", uid, path)
    except BlockingIOError:
        sock.close()
        raise
    except ConnectionRefusedError:
        with contextlib.suppress(OSError):
            path.unlink()
    except (OSError, Disconnected) as error:
        log.debug("%s: %s", path, error)
    sock.close()
    return None


def _answers(
    asked: dict[int, tuple[socket.socket, int]], patience_s: float
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Descriptions by descriptor, as they come; an empty one of a device that went away."""
    until_s = time.monotonic() + patience_s
    waiting = set(asked)
    while waiting and (left_s := until_s - time.monotonic()) > 0:
        for fd in select.select(list(waiting), [], [], left_s)[0]:
            waiting.discard(fd)
            try:
                reply, _ = read_reply(*channel.receive(asked[fd][0]))
                yield fd, reply.info
            except (Disconnected, ProtocolError):
                yield fd, {}
