"""Where named devices are met: a socket in a directory that only this user can enter."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, ResourceError
from openhtp.rpc import channel

# What the kernel takes as the name of a socket, without its final zero.
_LONGEST_PATH = 107
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def directory() -> Path:
    """The meeting place, made on first use. Refuses one that others could enter or that is not ours."""
    base = os.environ.get("OPENHTP_RUNTIME_DIR")
    if not base:
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        base = f"{runtime}/openhtp" if runtime else f"{tempfile.gettempdir()}/openhtp-{os.getuid()}"
    path = Path(base)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = path.lstat()
    except OSError as error:
        raise ResourceError(
            f"cannot make the directory {path} for device sockets: {error.strerror}",
            st.QNN_COMMON_ERROR_SYSTEM,
        ) from error
    private = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077
    if not private:
        raise ResourceError(
            f"{path} must be a directory of this user with mode 0700; remove it or set OPENHTP_RUNTIME_DIR",
            st.QNN_COMMON_ERROR_SYSTEM,
        )
    return path


def socket_path(name: str) -> Path:
    """Socket of the device with this name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"device name {name!r}; expected up to 64 letters, digits, '.', '_' or '-', a letter or digit first",
            st.QNN_DEVICE_ERROR_INVALID_ARGUMENT,
        )
    path = directory() / f"{name}.sock"
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ResourceError(
            f"the socket path {path} of device {name!r} has more than {_LONGEST_PATH} bytes; set"
            " OPENHTP_RUNTIME_DIR to a shorter directory",
            st.QNN_COMMON_ERROR_SYSTEM,
        )
    return path


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Keep others from opening or closing doors meanwhile. Dies with its holder."""
    fd = os.open(directory(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def connect(name: str) -> socket.socket | None:
    """Connect to a named device; None if there is none. Clears away the socket of one that was killed."""
    path = socket_path(name)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(str(path))
    except FileNotFoundError:
        sock.close()
        return None
    except ConnectionRefusedError:
        sock.close()
        path.unlink(missing_ok=True)
        return None
    channel.enlarge(sock)
    return sock


def listen(name: str) -> socket.socket:
    """Open the door of a named device. Call under ``locked`` and after ``connect`` said None."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(str(socket_path(name)))
    sock.listen(16)
    return sock


def names() -> list[str]:
    """Names under which a socket exists, dead or alive."""
    return sorted(path.stem for path in directory().glob("*.sock"))


@dataclass(frozen=True)
class Door:
    """A named device's listening socket and its place in the directory."""

    name: str
    listener: socket.socket

    def close_unless_called(self) -> socket.socket | None:
        """Close the door and clear its place away, or return the client that came at the last moment."""
        with locked():
            self.listener.setblocking(False)
            try:
                newcomer, _ = self.listener.accept()
            except OSError:
                self._clear_away()
                return None
        return newcomer

    def close(self) -> None:
        """Close the door whoever may be waiting outside; they will find the device gone."""
        with locked():
            self._clear_away()

    def _clear_away(self) -> None:
        socket_path(self.name).unlink(missing_ok=True)
        self.listener.close()
