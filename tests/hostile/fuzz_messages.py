"""Raw messages to a device that others use: noise, forged numbers, descriptors, silence. The neighbour goes on."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time

import openhtp as htp
from openhtp.runtime.instruments.device_queries import number_of
from tests.hostile.leaks import Holdings, open_files
from tests.hostile.probe import Neighbour, check_on_clean_context
from tests.hostile.tally import LONGEST_CALL, Budget, Watch
from tests.hostile.wire import RawClient, mutated, random_frame, random_request

SHORT = 25
"""Rounds of the short form."""

_NAME = "hostile"
_PATIENCE = LONGEST_CALL


def attack(rng: random.Random, budget: Budget, watch: Watch) -> None:
    """One connection after the other misbehaves."""
    with htp.Backend() as warm:
        Neighbour(warm.create_device())
    holdings = Holdings()
    with htp.Backend() as backend:
        device = backend.create_device(name=_NAME)
        neighbour = Neighbour(device)
        neighbour.check(watch)
        pid, before = device.pid, len(open_files(device.pid))
        numbers = [number_of(neighbour.graph), neighbour.context.opened.number]
        while budget:
            with watch.call("a connection that misbehaves"):
                _misbehave(rng, watch, list(numbers))
            neighbour.check(watch)
            if device.pid != pid:
                watch.found("crash", f"the device of everyone died: {device!r}")
                pid, neighbour = device.pid, Neighbour(device)
                before = len(open_files(pid))
        check_on_clean_context(device, watch)
        _check_device(device.pid, before, watch)
    holdings.check(watch)


def _misbehave(rng: random.Random, watch: Watch, numbers: list[int]) -> None:
    try:
        client = RawClient(_NAME, greet=rng.random() < 0.9)
    except OSError as error:
        watch.found("wrong", f"the device takes no more clients: {error!r}")
        return
    with contextlib.ExitStack() as stack:
        stack.callback(client.close)
        for _ in range(rng.randint(1, 40)):
            if rng.random() < 0.5:
                frame = random_frame(rng, numbers)
                watch.last.append(f"frame {frame[:60].hex()}")
                client.send_frame(frame)
                continue
            message = random_request(rng, numbers)
            if rng.random() < 0.2:
                message = mutated(rng, message)
            elif rng.random() < 0.05:
                message = rng.randbytes(rng.choice((0, 1, 100, 70_000)))
            descriptors = _descriptors(rng, stack)
            watch.last.append(f"message of {len(message)} bytes, {len(descriptors)} descriptors: {message[:80]!r}")
            if not client.send(message, descriptors):
                break
            if rng.random() < 0.9:
                number = client.receive()
                watch.tally.count("(hung up)" if number is None else "(replied)")
                if number is None:
                    break
                numbers.append(number)
            client.drain()


def _descriptors(rng: random.Random, stack: contextlib.ExitStack) -> tuple[int, ...]:
    """None, mostly; else what was not asked for."""
    if rng.random() < 0.6:
        return ()
    made = []
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        kind = rng.randrange(4)
        if kind == 0:
            fd = os.memfd_create("hostile", os.MFD_CLOEXEC)
            os.truncate(fd, rng.choice((0, 4096, 1 << 20)))
        elif kind == 1:
            fd = os.open("/dev/zero", os.O_RDWR | os.O_CLOEXEC)
        elif kind == 2:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(ours)
            fd = theirs.detach()
        else:
            fd, other = os.pipe()
            stack.callback(os.close, other)
        stack.callback(os.close, fd)
        made.append(fd)
    return tuple(made)


def _check_device(pid: int, before: int, watch: Watch) -> None:
    """The device holds no more descriptors than before all those clients."""
    deadline = time.monotonic() + _PATIENCE
    while (now := len(open_files(pid))) > before and time.monotonic() < deadline:
        time.sleep(0.1)
    if now > before:
        watch.found(
            "leak", f"the device holds {now} descriptors, {before} before: {sorted(open_files(pid))[-10:]}"
        )
