"""How long the device had the requests of one call, for a profile that tells so.

A call may ask several things of the device, through layers that do not know whether it is profiled. Whoever fills
a profile opens an account; every reply to this thread is entered in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from openhtp.rpc import messages as ms


class Served:
    """An account: how long the device had the requests, and how much of that it worked for them."""

    __slots__ = ("served_ns", "worked_ns")

    def __init__(self) -> None:
        self.served_ns = 0
        self.worked_ns = 0


_account: ContextVar[Served | None] = ContextVar("openhtp_served", default=None)


@contextlib.contextmanager
def serving() -> Iterator[Served]:
    """An account of what the device does for this thread meanwhile."""
    account = Served()
    token = _account.set(account)
    try:
        yield account
    finally:
        with contextlib.suppress(
            ValueError
        ):  # dropped elsewhere, after an interrupt: that account is not kept here
            _account.reset(token)


def note(reply: ms.Reply) -> None:
    """A reply has come; it is entered if anybody keeps an account."""
    account = _account.get()
    if account is not None:
        account.served_ns += reply.served_ns
        account.worked_ns += reply.worked_ns
