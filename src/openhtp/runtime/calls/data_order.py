"""The order of data: an execution reads its inputs after all executions queued before it have written theirs.

A device runs executions of one priority in their order, but does not see arrays of the client: raw data are copied
into shared memory before an execution and out of it afterwards. So a call whose arrays an earlier one still has to
write is accepted and then delayed, here, until they are written. It holds up no other calls. Decision 033.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from openhtp.core import status as st, tidying
from openhtp.core.errors import InternalError, QnnError
from openhtp.core.latches import Latch
from openhtp.core.status import Status
from openhtp.core.threads import OwnThread
from openhtp.core.tidying import Task
from openhtp.rpc.frames import Record
from openhtp.runtime.calls.execution import complete, when_over

if TYPE_CHECKING:
    from openhtp.runtime.calls.arguments import Arguments, Span
    from openhtp.runtime.calls.call import Call
    from openhtp.runtime.calls.execution import Execution
    from openhtp.runtime.calls.queue import Places

log = logging.getLogger(__name__)


class DataOrder:
    """The asynchronous calls under way on one link, by what they read and write, and those that are delayed."""

    __slots__ = ("_copied_out", "_delayed", "_do", "_in_order", "_under_way")

    def __init__(self, *, in_order: bool, do: Callable[[Task], None]) -> None:
        """``in_order``: the device never runs two graphs side by side. ``do`` runs a task that must not stop."""
        self._in_order = in_order
        self._do = do
        self._under_way: dict[Call, None] = {}
        # Those of them whose results are copied to arrays of the client after the device is done.
        self._copied_out: dict[Call, None] = {}
        self._delayed: dict[int, DelayedCall] = {}

    @property
    def is_clear(self) -> bool:
        """Whether no call is delayed."""
        return not self._delayed

    def enter(self, call: Call) -> list[Execution]:
        """Note a call that is about to be sent, and return the executions that it has to wait for."""
        arguments = call.arguments
        earlier: list[Execution] = []
        is_copied = call.bound is None
        if self._delayed or not self._in_order or (is_copied and (arguments.raw_inputs or self._copied_out)):
            earlier = list(self._earlier(arguments, is_copied=is_copied))
        if not call.synchronous:
            self._under_way[call] = None
            if is_copied and arguments.has_raw_targets:
                self._copied_out[call] = None
        return earlier

    def leave(self, call: Call) -> None:
        """Forget a call that is over and has written everything; a second call does nothing."""
        self._under_way.pop(call, None)
        if self._copied_out:
            self._copied_out.pop(call, None)

    def _earlier(self, arguments: Arguments, *, is_copied: bool) -> Iterator[Execution]:
        for other in list(self._under_way):
            execution = other.execution
            if execution is None or execution.done():
                continue
            if execution.job in self._delayed or not self._in_order:
                conflicts = _conflict(arguments, other.arguments)
            elif is_copied:
                conflicts = _meet(arguments.read_raw, other.arguments.written_anywhere) or (
                    other in self._copied_out and _meet(arguments.read_anywhere, other.arguments.written_raw)
                )
            else:
                continue  # arrays that are used where they lie are read when the device comes to it
            if conflicts:
                yield execution

    # Delayed calls

    def delay(self, call: Call, earlier: list[Execution], send: Callable[[], None]) -> None:
        """Send a call when these executions are over. Until then it can be cancelled, and its timeout counts."""
        execution = call.execution
        assert execution is not None
        delayed = self._delayed[execution.job] = DelayedCall(call, execution, send, len(earlier))
        call.sent(execution.job)  # from now on its signal can reach it
        if call.timeout_at:
            OwnThread(self._watch, delayed, name="openhtp-delayed").start()
        for other in earlier:
            when_over(other, functools.partial(self._earlier_is_over, delayed))

    def cancel(self, job: int) -> bool:
        """End a delayed call; False if it is not delayed any more, so that the device has to end it."""
        delayed = self._delayed.get(job)
        if delayed is None:
            return False
        delayed.is_cancelled = True
        return self._end(delayed, st.QNN_GRAPH_ERROR_ABORTED, "cancelled before it was sent")

    def end_all(self, places: Places, status: Status, why: str) -> None:
        """End the delayed calls of one context."""
        for delayed in list(self._delayed.values()):
            if delayed.call.places is places:
                self._end(delayed, status, why)

    def take_all(self) -> list[Execution]:
        """The delayed executions, which their link ends in its own way."""
        jobs = list(self._delayed)
        return [delayed.execution for job in jobs if (delayed := self._delayed.pop(job, None)) is not None]

    def _earlier_is_over(self, delayed: DelayedCall) -> None:
        """Runs on the thread that completed an earlier execution."""
        if delayed.one_less():
            self._do((self._send, (delayed,)))

    def _send(self, delayed: DelayedCall) -> None:
        """Send a call, unless it has ended meanwhile."""
        execution, call = delayed.execution, delayed.call
        if self._delayed.pop(execution.job, None) is None:
            return
        delayed.over.unlock()
        try:
            delayed.send()
        except QnnError as error:
            _complete(delayed, error.status, error.message)
        except Exception as error:
            log.exception("sending execution %d, which was delayed", execution.job)
            failure = InternalError(f"the execution of graph {call.graph_name!r} could not be sent: {error!r}")
            _complete(delayed, failure.status, failure.message)
        if delayed.is_cancelled:
            call.link.cancel(execution.job)  # again, as the first time may have been before it was sent

    def _watch(self, delayed: DelayedCall) -> None:
        """The timeout of a delayed call, on a thread of its own."""
        left_ns = delayed.call.timeout_at - delayed.call.link.now()
        if not delayed.over.wait(max(0.0, left_ns / 1e9)):
            self._end(delayed, st.QNN_GRAPH_ERROR_TIMED_OUT, "timed out before it was sent")

    def _end(self, delayed: DelayedCall, status: Status, why: str) -> bool:
        if self._delayed.pop(delayed.execution.job, None) is None:
            return False
        delayed.over.unlock()
        _complete(delayed, status, f"the execution of graph {delayed.call.graph_name!r} {why}")
        return True


class DelayedCall:
    """An accepted call that waits for the data of earlier ones."""

    __slots__ = ("_left", "call", "execution", "is_cancelled", "over", "send")

    def __init__(self, call: Call, execution: Execution, send: Callable[[], None], earlier: int) -> None:
        self.call = call
        self.execution = execution
        self.send = send
        self.is_cancelled = False
        # Unlocked once it is sent, or ended without.
        self.over = Latch()
        self._left = [None] * earlier

    def one_less(self) -> bool:
        """Count down the earlier executions; return whether none is left. Two threads may both get True."""
        self._left.pop()
        return not self._left


def run_task(task: Task) -> None:
    """Run a task here and now."""
    function, arguments = task
    function(*arguments)


def on_a_safe_thread(task: Task) -> None:
    """Run a task here, or on another thread if an interrupt could stop it half-way."""
    if threading.current_thread() is threading.main_thread():
        tidying.post(task)
    else:
        run_task(task)


def _complete(delayed: DelayedCall, status: Status, text: str) -> None:
    execution = delayed.execution
    complete(execution, Record.of_moment(execution.job, status.code, delayed.call.link.now()), text)


def _conflict(later: Arguments, earlier: Arguments) -> bool:
    """Whether the order of two calls decides what one of them reads, or what is left in the end."""
    return (
        _meet(later.read_anywhere, earlier.written_anywhere)
        or _meet(later.written_anywhere, earlier.read_anywhere)
        or _meet(later.written_anywhere, earlier.written_anywhere)
    )


def _meet(some: tuple[Span, ...], others: tuple[Span, ...]) -> bool:
    return any(begin < other_end and other_begin < end for begin, end in some for other_begin, other_end in others)
