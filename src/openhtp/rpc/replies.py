"""Replies as they come off a socket, with what came beside them."""

from __future__ import annotations

import contextlib

from openhtp.rpc import channel, messages as ms
from openhtp.rpc.shm import SharedBuffer


def read_reply(packet: bytes, descriptors: list[int]) -> tuple[ms.Reply, bytes]:
    """A reply, and the content of the memory that came with it. Takes all descriptors."""
    try:
        reply = ms.decode_reply(packet)
        data = _content(descriptors.pop()) if descriptors else b""
        return (ms.decode_reply(data) if reply.moved else reply), data
    finally:
        channel.close_all(descriptors)


def _content(fd: int) -> bytes:
    with contextlib.closing(SharedBuffer.attach(fd)) as buffer:
        return bytes(buffer.view)
