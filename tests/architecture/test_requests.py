"""A request is known by its message and its handler, and nowhere else."""

from __future__ import annotations

import re

import msgspec
import pytest

from openhtp.device.requests import HANDLERS
from openhtp.device.requests.table import Asked, Sender, handles
from openhtp.rpc import messages as ms
from openhtp.rpc.channel import ProtocolError


def test_every_message_has_its_one_handler() -> None:
    assert set(HANDLERS) == set(ms.REQUESTS)
    assert len({handler.act for handler in HANDLERS.values()}) == len(ms.REQUESTS)


def test_a_second_handler_is_refused() -> None:
    before = HANDLERS[ms.Inspect]

    def another(asked: Asked, request: ms.Inspect) -> ms.Reply:
        return ms.Reply()

    with pytest.raises(TypeError, match="Inspect has a handler: describe"):
        handles(ms.Inspect)(another)
    assert HANDLERS[ms.Inspect] is before


def test_only_hello_is_for_strangers() -> None:
    strangers = [kind for kind, handler in HANDLERS.items() if handler.sender is Sender.STRANGER]
    assert strangers == [ms.Hello]


@pytest.mark.parametrize("kind", ms.REQUESTS, ids=lambda kind: kind.__name__)
def test_a_message_says_which_descriptor_it_comes_with(kind: type[ms.Request]) -> None:
    # Where a line begins, Python takes away the spaces before it from 3.13 on.
    assert bool(re.search(r"(?m)(^| )Descriptor: ", kind.__doc__ or "")) == HANDLERS[kind].takes_descriptor


@pytest.mark.parametrize("kind", ms.REQUESTS, ids=lambda kind: kind.__name__)
def test_every_message_is_known_to_the_decoder(kind: type[ms.Request]) -> None:
    if any(field.required for field in msgspec.structs.fields(kind)):
        with pytest.raises(ProtocolError, match="missing required field"):
            ms.decode_request(msgspec.msgpack.encode({"type": kind.__name__}))
    else:
        assert type(ms.decode_request(ms.encode(kind()))) is kind
