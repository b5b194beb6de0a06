"""The table of requests: message, handler, and the conditions under which the handler is called."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from openhtp.core import status as st
from openhtp.core.errors import UnsupportedFeature
from openhtp.core.status import Status
from openhtp.device.answers import Answer
from openhtp.device.sessions import Session
from openhtp.device.tasks import Task
from openhtp.rpc import channel, messages as ms
from openhtp.rpc.channel import ProtocolError
from openhtp.rpc.shm import SharedBuffer

if TYPE_CHECKING:
    from openhtp.device.core import DeviceCore
    from openhtp.device.library_target import LibraryTarget

_R = TypeVar("_R", bound=ms.Request)


class Sender(enum.Enum):
    """A request may come from a stranger, a client that said hello, or one that did so over a connection."""

    STRANGER = "stranger"
    SESSION = "session"
    CONNECTION = "connection"


class Host(Protocol):
    """The connection of a request. A client in the device's own process has none."""

    def open_session(self, label: str, *, shares_budget: bool, pd_session: str) -> Session:
        """Let the client in; it may share one budget with other clients of its process."""

    def add_duct(self, descriptor: int) -> None:
        """Take executions on another socket, too; the descriptor is the connection's from now on."""

    def stop(self, *, now: bool) -> None:
        """End the device when the last client has gone, or at once."""


@dataclass(slots=True)
class Asked:
    """A request's circumstances: its sender and its descriptors. Descriptors that are left are closed."""

    core: DeviceCore
    descriptors: list[int]
    given_session: Session | None
    given_host: Host | None

    @property
    def session(self) -> Session:
        """The client that asks."""
        assert self.given_session is not None
        return self.given_session

    @property
    def host(self) -> Host:
        """The connection of the request."""
        assert self.given_host is not None
        return self.given_host

    def descriptor(self) -> int:
        """The one descriptor that must have come."""
        if len(self.descriptors) != 1:
            raise ProtocolError(f"a request with {len(self.descriptors)} descriptors; expected 1")
        return self.descriptors.pop()

    def first_descriptor(self, others: int) -> int:
        """The first descriptor; ``others`` is the number that must follow it."""
        if len(self.descriptors) != 1 + others:
            raise ProtocolError(f"a request with {len(self.descriptors)} descriptors; expected {1 + others}")
        return self.descriptors.pop(0)

    @property
    def library(self) -> LibraryTarget:
        """The vendor's library that the device computes with. Raises UnsupportedFeature on an emulator."""
        if self.core.library is None:
            raise UnsupportedFeature(
                "binaries of the vendor's library are for a device that computes with it; make one with"
                " Backend(library=...)",
                st.QNN_COMMON_ERROR_NOT_SUPPORTED,
            )
        return self.core.library

    def refuse_library(self, why: str, status: Status = st.QNN_COMMON_ERROR_NOT_SUPPORTED) -> None:
        """Refuse modelled features where the vendor's library computes."""
        if self.core.library is not None:
            raise UnsupportedFeature(f"the device is the vendor's library: {why}; use the emulator", status)

    def memory(self, nbytes: int = 0) -> SharedBuffer:
        """The shared memory that must have come, or its first ``nbytes``."""
        return SharedBuffer.attach(self.descriptor(), nbytes, may_shrink=self.core.serves_one)


@dataclass(frozen=True, slots=True)
class Handler:
    """The reaction to a message. If ``act`` returns a task, the answer is made later."""

    act: Callable[[Asked, Any], Answer | Task[Any]]
    sender: Sender
    takes_descriptor: bool


HANDLERS: dict[type[ms.Request], Handler] = {}


def handles(
    kind: type[_R], *, sender: Sender = Sender.SESSION, takes_descriptor: bool = False
) -> Callable[[Callable[[Asked, _R], Answer | Task[Any]]], Callable[[Asked, _R], Answer | Task[Any]]]:
    """Register the handler of a message."""

    def register(act: Callable[[Asked, _R], Answer | Task[Any]]) -> Callable[[Asked, _R], Answer | Task[Any]]:
        if kind in HANDLERS:
            raise TypeError(f"{kind.__name__} has a handler: {HANDLERS[kind].act.__qualname__}")
        HANDLERS[kind] = Handler(act, sender, takes_descriptor)
        return act

    return register


def answer(asked: Asked, request: ms.Request) -> Answer | Task[Any]:
    """Have a request answered by its handler, if this sender may ask for it."""
    handler, name = HANDLERS[type(request)], type(request).__name__
    if asked.given_session is None and handler.sender is not Sender.STRANGER:
        raise ProtocolError("the first message must be Hello")
    if asked.given_session is not None and handler.sender is Sender.STRANGER:
        raise ProtocolError(f"{name} twice")
    if asked.given_host is None and handler.sender is not Sender.SESSION:
        raise ProtocolError(f"{name} is not expected here")
    if not handler.takes_descriptor:
        channel.close_all(asked.descriptors)
        asked.descriptors.clear()
    return handler.act(asked, request)
