"""Requests and replies: long ones, senseless ones, and those that nobody waits for any more."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import msgspec
import pytest

import openhtp as htp
from openhtp.rpc import channel, messages as ms
from openhtp.rpc.shm import SharedBuffer
from openhtp.runtime.links.control import Control
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S


@pytest.fixture
def device(backend: htp.Backend) -> htp.Device:
    return backend.create_device()


def still_good(device: htp.Device) -> None:
    relu_graph(device.create_context()).execute({"x": ramp()})
    assert device.restarts == 0
    assert device.info()["pid"] == device.pid


def test_a_reply_may_be_longer_than_a_message(device: htp.Device) -> None:
    context = device.create_context()
    for number in range(700):
        context.create_app(f"app-{number:04}" + "n" * 100)
    assert len(msgspec.msgpack.encode(device.info())) > channel.MAX_MESSAGE
    still_good(device)


@pytest.mark.parametrize("name", ["n" * 70_000, "n" * channel.MAX_MESSAGE])
def test_a_request_that_is_too_long_is_refused_before_it_is_sent(device: htp.Device, name: str) -> None:
    with pytest.raises(htp.InvalidArgument):
        device.create_context().create_app(name)
    still_good(device)


@pytest.mark.parametrize(
    "wrong",
    [{"hvx": "2"}, {"hvx": 1 << 70}, {"vtcm_bytes": -(1 << 63)}, {"hmx": object()}, {"hmx": 1.5}],
    ids=["a word", "a large number", "a negative number", "an object", "a fraction"],
)
def test_a_client_side_mistake_never_loses_the_device(device: htp.Device, wrong: dict[str, object]) -> None:
    context = device.create_context()
    with pytest.raises((htp.QnnError, TypeError, ValueError)) as caught:
        context.create_app("x", **wrong)  # type: ignore[arg-type]
    assert not isinstance(caught.value, htp.DeviceLost)
    still_good(device)


def test_what_the_device_cannot_read_is_answered_by_number(device: htp.Device) -> None:
    """Past the checks of the API, as a client in another language might do it."""
    link = device.link
    message = ms.AddApp(context=1, name="x", priority=100, hmx=0, hvx="2", vtcm_bytes=1)  # type: ignore[arg-type]
    with pytest.raises(htp.InvalidArgument, match="cannot read the request"):
        link.request(message)
    still_good(device)


class Ends:
    """A control connection whose device is this test."""

    def __init__(self) -> None:
        ours, self.device = channel.socket_pair()
        self.control = Control(ours)
        self.device.settimeout(PATIENCE_S)

    def next_request(self) -> ms.Request:
        return ms.decode_request(channel.receive(self.device)[0])

    def answer(self, reply: ms.Reply, *descriptors: int) -> None:
        channel.send(self.device, ms.encode(reply), descriptors)


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.device.close()
    both.control.close()


def test_answers_find_their_questions_by_number(ends: Ends) -> None:
    ends.control.tell(ms.Inspect())
    late = ends.next_request().number
    ends.answer(ms.Reply(number=late + 50, value=7))  # never asked, and so of no interest
    ends.answer(ms.Reply(number=late, value=8))
    ends.answer(ms.Reply(number=late + 100, value=9))

    def reply() -> None:
        number = ends.next_request().number
        ends.answer(ms.Reply(number=late, value=1))  # a late one first
        ends.answer(ms.Reply(number=number, value=2))

    thread = threading.Thread(target=reply)
    thread.start()
    assert ends.control.ask(ms.Inspect()).value == 2
    thread.join()


def test_descriptors_that_nobody_wants_are_closed(ends: Ends) -> None:
    before = len(os.listdir("/proc/self/fd"))
    buffer = SharedBuffer.holding([b"late"])
    ends.answer(ms.Reply(number=77, value=4), buffer.fd, buffer.fd)
    buffer.close()
    ends.control.tell(ms.Inspect())
    number = ends.next_request().number + 1
    ends.answer(ms.Reply(number=number))

    def reply() -> None:
        ends.answer(ms.Reply(number=ends.next_request().number))

    thread = threading.Thread(target=reply)
    thread.start()
    ends.control.ask(ms.Inspect())  # all that came before has been looked at
    thread.join()
    assert len(os.listdir("/proc/self/fd")) == before
