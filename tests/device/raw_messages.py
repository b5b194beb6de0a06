"""Raw messages for a device, at random: sound ones, damaged ones, and noise. The same seed gives the same ones."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from openhtp.rpc import channel, frames, messages as ms
from openhtp.rpc.shm import SharedBuffer

_NUMBERS = (0, 1, 2, 3, 5, 8, -1, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, -(2**63), 2**64 - 1)
_TEXTS = ("", "a", "\x00", "x" * 5000, "ünïcödé", "../../etc")


@dataclass(frozen=True, slots=True)
class Message:
    """One message: on the control socket or on the duct, with so many descriptors beside it."""

    control: bool
    data: bytes
    descriptors: int


def messages(seed: int, count: int) -> Iterator[Message]:
    """So many messages, about half of them to each socket."""
    rng = random.Random(seed)
    for _ in range(count):
        if rng.random() < 0.5:
            yield Message(True, _damaged(rng, _request(rng)), rng.choice((0, 0, 1, 1, 2, 4)))
        else:
            yield Message(False, _damaged(rng, _frame(rng)), rng.choice((0, 0, 0, 1)))


def _value(rng: random.Random, depth: int = 0) -> object:
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind < 4:
        return rng.choice(_NUMBERS) if rng.random() < 0.5 else rng.randrange(12)
    if kind == 4:
        return rng.choice(_TEXTS)
    if kind == 5:
        return rng.choice((None, True, False, 1.5, b"bytes"))
    if kind == 6:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(("step_ns", "save_ns", "a")): _value(rng, depth + 1) for _ in range(rng.randrange(3))}


def _request(rng: random.Random) -> bytes:
    """A request of a known kind whose fields are mostly of the right type."""
    kinds = [kind for kind in ms.REQUESTS if kind is not ms.Shutdown]
    kind = rng.choice(kinds)
    fields: dict[str, object] = {"type": kind.__name__}
    for field in msgspec.structs.fields(kind):
        if field.name in ("label", "name"):
            fields[field.name] = rng.choice(_TEXTS)
        elif field.name == "graphs" and rng.random() < 0.85:
            fields[field.name] = [
                {"place": rng.randrange(-1, 3), "priority": rng.randrange(12)} for _ in range(rng.randrange(3))
            ]
        elif rng.random() < 0.85:
            fields[field.name] = rng.choice(_NUMBERS) if rng.random() < 0.3 else rng.randrange(12)
        else:
            fields[field.name] = _value(rng)
    return msgspec.msgpack.encode(fields)


def _frame(rng: random.Random) -> bytes:
    """A frame whose fields are mostly small."""

    def number(bits: int) -> int:
        return rng.randrange(12) if rng.random() < 0.8 else rng.choice(_NUMBERS) % 2**bits

    kind = rng.choice((1, 1, 1, 2, rng.randrange(256)))
    count, graph, batch = number(16), number(32), number(32)
    head = frames.EXECUTE_HEAD.pack(
        kind, rng.randrange(3), count, graph, batch, number(32), rng.randrange(2**20), number(64), number(64)
    )
    if rng.random() < 0.3:
        return head + frames.APP_RUN.pack(number(64), number(64))
    bindings = [frames.Binding(number(32), number(32), number(64)) for _ in range(min(count, 20))]
    return head + frames.pack_bindings(bindings)


def _damaged(rng: random.Random, data: bytes) -> bytes:
    kind = rng.randrange(10)
    if kind < 6 or not data:
        return data
    if kind == 6:
        return data[: rng.randrange(len(data))] or b"\x00"
    if kind == 7:
        return rng.randbytes(rng.choice((1, 7, 40, 400, channel.MAX_MESSAGE)))
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def throw(connect: socket.socket, thrown: Message, descriptors: list[int]) -> bool:
    """Send one message; False if the connection is over."""
    try:
        chosen = tuple(descriptors[index % len(descriptors)] for index in range(thrown.descriptors))
        channel.send(connect, thrown.data, chosen)
    except (channel.Disconnected, channel.ProtocolError, BlockingIOError, TimeoutError):
        return False
    return True


def assorted_descriptors() -> list[int]:
    """Things to send along: a file, sealed memory, memory of no fixed size, a socket, an end of a pipe."""
    buffer = SharedBuffer.create(4096)
    sealed = os.dup(buffer.fd)
    buffer.close()
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other.close()
    reading, writing = os.pipe()
    os.close(writing)
    return [os.open("/dev/null", os.O_RDONLY), sealed, os.memfd_create("loose"), one.detach(), reading]
