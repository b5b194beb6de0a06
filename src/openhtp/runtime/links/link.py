"""The client's connection to its device, of whatever kind."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

from openhtp.core.errors import QnnError
from openhtp.rpc import messages as ms
from openhtp.runtime.calls.queue import PlaceHolder, Places

if TYPE_CHECKING:
    from openhtp.program.packed import PackedGraph
    from openhtp.runtime.calls.bound_call import RehearsedRun, Shortcut
    from openhtp.runtime.calls.data_order import DataOrder
    from openhtp.runtime.calls.execution import Execution
    from openhtp.runtime.calls.long_call import CallStop


# Makes, from the reply to a request, the request that undoes it.
Undo = Callable[[ms.Reply], ms.Request]
# Asked while waiting: the reason to stop, if there is one.
Interrupted = Callable[[], QnnError | None]
# Called with the job's number as soon as the execution was sent.
Sent = Callable[[int], None]
# Gets the lines that the vendor's library logged in the device's process.
library_log = logging.getLogger("openhtp.vendor.qnn")


@dataclass(frozen=True, slots=True)
class HandedGraph:
    """Where the device finds a graph: as a binary behind a descriptor, or lent under a number."""

    nbytes: int
    descriptors: tuple[int, ...] = ()
    lent: int = 0


class Link(Protocol):
    """Requests are answered in turn; executions are sent and reported as they end."""

    @property
    def pid(self) -> int:
        """The process that computes."""

    @property
    def data_order(self) -> DataOrder:
        """Which of its executions read what others write."""

    def now(self) -> int:
        """The device's time in nanoseconds, in which timeouts are given."""

    def set_polling(self, polling_us: int | None, adaptive_us: int) -> None:
        """Set how long to poll for an execution's end before sleeping, and which executions to sleep for first."""

    def request(
        self,
        message: ms.Request,
        descriptors: tuple[int, ...] = (),
        undo: Undo | None = None,
        stop: CallStop | None = None,
    ) -> ms.Reply:
        """Ask and wait for the answer. Raises the device's error, or DeviceLost.

        ``undo`` makes, from the reply, the request that undoes this one; it is sent if the caller is interrupted
        before it has the reply. ``stop`` may end the waiting, and with it the device's work.
        """

    def handing_over(self, packed: PackedGraph) -> AbstractContextManager[HandedGraph]:
        """Give the device a graph that was just packed. Stay in the block until the graph is loaded."""

    def tell(self, message: ms.Request) -> None:
        """Ask for something whose outcome does not matter; never raises."""

    def leave_to_parent(self, error: QnnError) -> None:
        """Close all copies, in the child of a fork.

        Executions under way end with this error and are not notified.
        """

    def next_job(self) -> int:
        """A job number for an execution."""

    def submit(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Send an execution on its way; from now on it will be completed exactly once."""

    def forward(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Hand over an execution that was delayed. Called where an earlier execution has just been completed."""

    def run(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Send an execution and wait until it is over."""

    def run_here(self, execution: Execution, frame: bytes, *, if_short: bool = False) -> bool:
        """Compute an execution on this thread, if the device is here and idle; otherwise return False.

        With ``if_short``, only one that takes less time than handing it to another thread: it is asynchronous.
        """

    def shortcut(self, graph: int, arrays: Mapping[str, npt.NDArray[Any]]) -> Shortcut | None:
        """A way to compute a graph on these arrays without a queue; None if the link has none."""

    def rehearsed(self, graph: int) -> RehearsedRun | None:
        """A way to compute a graph without a queue, on copies of data; None if the link has none for it."""

    def cancel(self, job: int) -> None:
        """Ask for an execution's early end."""

    def awaits(self, execution: Execution, running: Collection[int]) -> bool:
        """Whether an execution of a freed context may still be reading or writing its caller's plain memory.

        ``running`` has the numbers of those that the device still computes.
        """

    def wait_for(self, execution: Execution, timeout: float | None) -> bool:
        """Wait until an execution is over; False if the time ran out."""

    def take_place(
        self, places: Places, holder: PlaceHolder, until_ns: int | None, interrupted: Interrupted
    ) -> None:
        """Take a place in a context's queue, waiting for one if it is full."""

    def settle(self, execution: Execution) -> bool:
        """After an interrupt: end an execution that may have been sent; False if it surely was not, or is over.

        Called on a thread that is never interrupted.
        """

    def fetch(self, message: ms.Request, descriptors: tuple[int, ...] = ()) -> bytes:
        """Ask for something that comes in shared memory; empty if none came."""

    def close(self) -> None:
        """Let the device go."""


class ServiceTime:
    """How long the device had the requests of one call, and how much of that time it worked on them.

    A call may ask several things of the device, through layers that do not know whether it is profiled. Code that
    fills a profile opens such an account; every reply to this thread is entered in it.
    """

    __slots__ = ("served_ns", "worked_ns")

    def __init__(self) -> None:
        self.served_ns = 0
        self.worked_ns = 0


_account: ContextVar[ServiceTime | None] = ContextVar("openhtp_served", default=None)


@contextlib.contextmanager
def serving() -> Iterator[ServiceTime]:
    """An account of the device's work for this thread while the block runs."""
    account = ServiceTime()
    token = _account.set(account)
    try:
        yield account
    finally:
        # After an interrupt the generator may be closed in another context, which does not have this account.
        with contextlib.suppress(ValueError):
            _account.reset(token)


def raise_reply(reply: ms.Reply) -> ms.Reply:
    """Raise the error that a reply carries, in its class on the device; otherwise return the reply."""
    account = _account.get()
    if account is not None:
        account.served_ns += reply.served_ns
        account.worked_ns += reply.worked_ns
    for level, line in reply.log:
        library_log.log(level, "%s", line)
    if not reply.error:
        return reply
    from openhtp.core import errors
    from openhtp.core.status import Status

    kind = getattr(errors, str(reply.info.get("kind", "")), errors.QnnError)
    if not (isinstance(kind, type) and issubclass(kind, QnnError)):
        kind = QnnError
    error = kind(reply.error, Status(reply.status_name, reply.status_code))
    error.context.extend(reply.where)
    raise error
