"""A client that speaks to a device over raw sockets, well or ill: all that attacks know of the protocol."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
from typing import Any

import msgspec

from openhtp.rpc import channel, frames, messages as ms, rendezvous

# Ending a named device is what whoever may talk to it may ask for.
_LEFT_OUT = (ms.Shutdown, ms.Hello)
REQUESTS = tuple(kind for kind in ms.REQUESTS if kind not in _LEFT_OUT)


class RawClient:
    """A connection to a named device, greeted properly unless told otherwise."""

    def __init__(self, name: str, *, greet: bool = True) -> None:
        sock = rendezvous.connect(name)
        if sock is None:
            raise ConnectionRefusedError(name)
        self.control = sock
        self.control.settimeout(2.0)
        self.data, theirs = channel.socket_pair()
        self.data.setblocking(False)
        with theirs:
            if greet:
                hello = ms.Hello(version=ms.PROTOCOL_VERSION, pid=os.getpid())
                self.send(ms.encode(hello), (theirs.fileno(),))
                self.receive()

    def send(self, data: bytes, descriptors: tuple[int, ...] = ()) -> bool:
        """One control message as it is; False once the device has hung up."""
        try:
            if descriptors:
                socket.send_fds(self.control, [data], list(descriptors))
            else:
                self.control.send(data)
        except OSError:
            return False
        return True

    def send_frame(self, data: bytes) -> None:
        """One message on the data socket; dropped if there is no room."""
        with contextlib.suppress(OSError):
            self.data.send(data)

    def receive(self) -> int | None:
        """The number that a reply brings; None if the device keeps silent or has hung up."""
        try:
            data, received = channel.receive(self.control)
            channel.close_all(received)
            return ms.decode_reply(data).value
        except (OSError, channel.Disconnected, channel.ProtocolError):
            return None

    def drain(self) -> None:
        """Read what the device says on the data socket."""
        with contextlib.suppress(OSError):
            while self.data.recv(channel.MAX_MESSAGE):
                pass

    def close(self) -> None:
        """Hang up."""
        self.control.close()
        self.data.close()


def random_request(rng: random.Random, numbers: list[int]) -> bytes:
    """A message of some kind with values that fit its fields, more or less."""
    kind = rng.choice(REQUESTS)
    fields = {field.name: _field(rng, field, numbers) for field in msgspec.structs.fields(kind)}
    try:
        return ms.encode(kind(**fields))
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        return rng.randbytes(20)


def _field(rng: random.Random, field: msgspec.structs.FieldInfo, numbers: list[int]) -> Any:
    words = str(field.type)
    if rng.random() < 0.1:
        return rng.choice((None, -1, 2**64 - 1, "", b"x", [], {}, 1.5, "n" * 1000, True))
    if "Work" in words:
        return None
    if "bool" in words:
        return rng.random() < 0.5
    if "str" in words:
        return rng.choice(("", "x", "name"))
    return rng.choice((0, 1, 2, 100, 2**31, 2**62, *numbers))


def random_frame(rng: random.Random, numbers: list[int]) -> bytes:
    """A frame for the data socket: an execution, a cancel, or noise."""
    count = rng.choice((0, 1, 2, 3, 1024, 65535))
    kind = rng.choice((frames.EXECUTE, frames.EXECUTE, frames.CANCEL, frames.DONE, rng.randrange(256)))
    number = rng.choice((0, 1, 2**32 - 1, *(value % 2**32 for value in numbers)))
    late = rng.choice((0, 1, 2**63, 2**64 - 1))
    job, deadline = rng.randrange(100), rng.choice((0, late))
    head = frames.EXECUTE_HEAD.pack(kind, rng.randrange(4), count, number, 1, 0, job, late, deadline)
    body = b"".join(
        frames.BINDING.pack(rng.randrange(4), number, rng.choice((0, 64, 2**63))) for _ in range(min(count, 4))
    )
    return mutated(rng, head + body) if rng.random() < 0.5 else head + body


def mutated(rng: random.Random, data: bytes) -> bytes:
    """The same with a few bytes changed, lost or added."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(changed) + 1)
        twist = rng.random()
        if twist < 0.5 and place < len(changed):
            changed[place] = rng.randrange(256)
        elif twist < 0.7:
            del changed[place : place + rng.randrange(8)]
        elif twist < 0.9:
            changed[place:place] = rng.randbytes(rng.randrange(8))
        else:
            changed[place:place] = struct.pack("<Q", rng.choice((0, 2**63, 2**64 - 1)))
    return bytes(changed)
