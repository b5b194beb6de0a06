"""Sockets that keep message borders (SEQPACKET), with descriptors, limits and clear failures."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct

# A control message is small: programs and tensors travel as descriptors beside it.
MAX_MESSAGE = 64 * 1024
MAX_DESCRIPTORS = 4
_BUFFER_BYTES = 4 * 1024 * 1024


class ProtocolError(Exception):
    """The other side broke the protocol; its connection must be closed."""


class Disconnected(Exception):
    """The other side is gone."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, with room for a full queue of messages in each."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (left, right):
        enlarge(end)
    return left, right


def enlarge(sock: socket.socket) -> None:
    """Raise the buffers: the default holds fewer messages than the deepest queue."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)


def send(sock: socket.socket, message: bytes, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message whole, with descriptors beside it."""
    if len(message) > MAX_MESSAGE:
        raise ProtocolError(f"message of {len(message)} bytes; the limit is {MAX_MESSAGE}")
    try:
        if descriptors:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            sock.sendmsg([message], ancillary)
        else:
            sock.send(message)
    except (BrokenPipeError, ConnectionResetError, OSError) as error:
        if isinstance(error, BlockingIOError) or error.errno is None:
            raise  # without a number it is not the system's but a signal handler's
        raise Disconnected(str(error)) from error


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one message and its descriptors, which the caller then owns.

    Raises Disconnected at the end of the connection, ProtocolError for a message over the limit.
    """
    try:
        data, ancillary, flags, _ = sock.recvmsg(MAX_MESSAGE, socket.CMSG_SPACE(4 * MAX_DESCRIPTORS))
    except BlockingIOError:
        raise
    except OSError as error:
        raise Disconnected(str(error)) from error
    descriptors = _descriptors(ancillary)
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_all(descriptors)
        raise ProtocolError(
            f"a message of more than {MAX_MESSAGE} bytes or {MAX_DESCRIPTORS} descriptors, or this process has no"
            " descriptor left for it"
        )
    if not data:
        close_all(descriptors)
        raise Disconnected("end of connection")
    return data, descriptors


def close_all(descriptors: list[int]) -> None:
    """Close descriptors that nobody wants."""
    for fd in descriptors:
        with contextlib.suppress(OSError):
            os.close(fd)


def peer_credentials(sock: socket.socket) -> tuple[int, int]:
    """Process and user at the other end, as the kernel knows them."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return pid, uid


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return list(descriptors)
