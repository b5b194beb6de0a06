"""Where named devices are met: a socket in a directory that only this user can enter."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, ResourceError
from openhtp.rpc import channel

# How long a named device may take to accept and greet a client: it hears them between two steps.
PATIENCE_S = 30.0

# What the kernel takes as the name of a socket, without its final zero.
_LONGEST_PATH = 107
_OPEN_FILES = Path("/proc/self/fd")
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
            f"cannot make the directory {path} for device sockets: {error.strerror}", st.QNN_COMMON_ERROR_SYSTEM
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
    return directory() / f"{name}.sock"


@contextlib.contextmanager
def address(path: Path) -> Iterator[str]:
    """The name by which the kernel takes a socket: its path, or a shorter way through its folder, held open."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    if not _OPEN_FILES.is_dir():
        raise ResourceError(
            f"the socket path {path} has more than {_LONGEST_PATH} bytes and cannot be shortened without"
            f" {_OPEN_FILES}; set OPENHTP_RUNTIME_DIR to a shorter directory",
            st.QNN_COMMON_ERROR_SYSTEM,
        )
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield str(_OPEN_FILES / str(folder) / path.name)
    finally:
        os.close(folder)


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
    """Connect to a named device; None if there is none. Clears away the socket of one that was killed.

    Nothing is sent before it is known that this user listens there.
    """
    path = socket_path(name)
    try:
        _verify(path)
    except FileNotFoundError:
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        # A device that does not accept keeps us waiting once its backlog is full. Not by settimeout: with it,
        # a local socket would not wait at all.
        _limit_waiting(sock, PATIENCE_S)
        with address(path) as where:
            sock.connect(where)
        _, uid = channel.peer_credentials(sock)
        if uid != os.getuid():
            raise _refused(path, f"user {uid} listens there")
        _limit_waiting(sock, 0)
        channel.enlarge(sock)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        sock.close()
        if isinstance(error, ConnectionRefusedError):
            path.unlink(missing_ok=True)
        return None
    except BlockingIOError as error:
        sock.close()
        raise mute(name) from error
    except OSError as error:
        sock.close()
        raise _refused(path, str(error)) from error
    except BaseException:
        sock.close()
        raise
    return sock


def mute(name: str) -> ResourceError:
    """Something listens under the name of a device and says nothing."""
    return ResourceError(
        f"device {name!r} did not answer for {PATIENCE_S:g} s; end the process that listens at"
        f" {socket_path(name)}, or remove that file",
        st.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION,
    )


def _limit_waiting(sock: socket.socket, seconds: float) -> None:
    """Let sending and connecting fail after a time; 0 lets them wait."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _verify(path: Path) -> None:
    """Raise unless the path is, itself and through no link, a socket of this user."""
    about = path.lstat()
    if not stat.S_ISSOCK(about.st_mode):
        raise _refused(path, "it is no socket")
    if about.st_uid != os.getuid():
        raise _refused(path, f"it belongs to user {about.st_uid}")


def _refused(path: Path, reason: str) -> ResourceError:
    return ResourceError(
        f"{path} is not the socket of a device of this user ({reason}); remove it or set OPENHTP_RUNTIME_DIR",
        st.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION,
    )


def listen(name: str) -> socket.socket:
    """Open the door of a named device. Call under ``locked``, and after ``connect`` returned None."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with address(socket_path(name)) as where:
            sock.bind(where)
        sock.listen(16)
    except BaseException:
        sock.close()
        raise
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
        """Close the door even if clients wait outside; they will find the device gone."""
        with locked():
            self._clear_away()

    def _clear_away(self) -> None:
        socket_path(self.name).unlink(missing_ok=True)
        self.listener.close()
