"""The order of data: an execution reads its inputs after all executions queued before it have written theirs.

A device runs executions of one priority in their order, but does not see arrays of the client: raw data are copied
into shared memory before an execution and out of it afterwards. So a call whose arrays an earlier one still has to
write is accepted and then delayed, here, until they are written. It holds up no other calls. Decision 033.
"""

from __future__ import annotations

import bisect
import functools
import itertools
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

# A plain array that a call writes: its first byte, a number that no other has, the byte after its last, the call.
# As the numbers differ, calls are never compared.
Target = tuple[int, int, int, "Call"]


class DataOrder:
    """The asynchronous calls under way on one link, by what they write, and those that are delayed.

    Most calls meet nothing here, and every call comes by: what they share is looked up, not searched.
    """

    __slots__ = ("_do", "_in_order", "_longest", "_numbers", "_targets", "delayed", "registered")

    def __init__(self, *, in_order: bool, do: Callable[[Task], None]) -> None:
        """``in_order``: the device never runs two graphs side by side. ``do`` runs a task that must not stop."""
        self._in_order = in_order
        self._do = do
        # Calls that write registered memory; on a device that is not ``in_order``, all.
        self.registered: dict[Call, None] = {}
        # Plain arrays that calls write, in order of their addresses, and the size of the longest.
        self._targets: list[Target] = []
        self._longest = 0
        self._numbers = itertools.count()
        self.delayed: dict[int, DelayedCall] = {}

    @property
    def is_simple(self) -> bool:
        """Whether only calls in ``registered`` write anything, and a call on registered memory waits for none."""
        return not self._targets and not self.delayed and self._in_order

    def note(self, call: Call) -> None:
        """Note what an asynchronous call writes that is about to be sent."""
        arguments = call.arguments
        if arguments.written or not self._in_order:
            self.registered[call] = None
        for begin, end in arguments.written_raw:
            # Each goes in, and out, in one step of the interpreter: no thread sees a part of it.
            target = (begin, next(self._numbers), end, call)
            if end - begin > self._longest:
                self._longest = end - begin
            call.targets = (*call.targets, target)
            bisect.insort(self._targets, target)

    def leave(self, call: Call) -> None:
        """Forget a call that is over and has written everything to plain arrays; a second call does nothing."""
        for target in call.targets:
            try:  # noqa: SIM105  # every such call comes through here: suppress takes longer
                self._targets.remove(target)
            except ValueError:
                pass
        if not self._targets:
            self._longest = 0

    def earlier(self, call: Call) -> list[Execution]:
        """The executions for whose end a call that is about to be sent has to wait."""
        arguments, is_copied = call.arguments, call.bound is None
        earlier: dict[Call, None] = {}
        if not self._in_order:
            earlier |= {other: None for other in list(self.registered) if _conflict(arguments, other.arguments)}
        for delayed in list(self.delayed.values()):
            if _conflict(arguments, delayed.call.arguments):
                earlier[delayed.call] = None
        # Arrays that are used where they lie are read when the device comes to the execution, in order.
        if is_copied and self._targets:
            earlier |= dict.fromkeys(self._writers(arguments))
        if is_copied and arguments.raw_inputs:
            for other in list(self.registered):
                if _meet(arguments.read_raw, other.arguments.written_anywhere):
                    earlier[other] = None
        executions = (other.execution for other in earlier)
        return [execution for execution in executions if execution is not None and not execution.done()]

    def _writers(self, arguments: Arguments) -> Iterator[Call]:
        """The calls that write what is read here. Registered memory is written in order, if not by a copy."""
        targets, longest = self._targets, self._longest
        for begin, end in arguments.read_raw:
            for target in targets[bisect.bisect_left(targets, (begin - longest,)) :]:
                if target[0] >= end:
                    break
                if target[2] > begin:
                    yield target[3]
        if arguments.registered:
            for begin, _, end, call in list(targets):
                if call.bound is None and _meet(arguments.read_registered, ((begin, end),)):
                    yield call

    # Delayed calls

    def delay(self, call: Call, earlier: list[Execution], send: Callable[[], None]) -> None:
        """Send a call when these executions are over. Until then it can be cancelled, and its timeout counts."""
        execution = call.execution
        assert execution is not None
        delayed = self.delayed[execution.job] = DelayedCall(call, execution, send, len(earlier))
        call.sent(execution.job)  # from now on its signal can reach it
        if call.timeout_at:
            OwnThread(self._watch, delayed, name="openhtp-delayed").start()
        for other in earlier:
            when_over(other, functools.partial(self._earlier_is_over, delayed))

    def cancel(self, job: int) -> bool:
        """End a delayed call; False if it is not delayed any more, so that the device has to end it."""
        delayed = self.delayed.get(job)
        if delayed is None:
            return False
        delayed.is_cancelled = True
        return self._end(delayed, st.QNN_GRAPH_ERROR_ABORTED, "cancelled before it was sent")

    def end_all(self, places: Places, status: Status, why: str) -> None:
        """End the delayed calls of one context."""
        for delayed in list(self.delayed.values()):
            if delayed.call.places is places:
                self._end(delayed, status, why)

    def take_all(self) -> list[Execution]:
        """The delayed executions, which their link ends in its own way."""
        jobs = list(self.delayed)
        return [delayed.execution for job in jobs if (delayed := self.delayed.pop(job, None)) is not None]

    def _earlier_is_over(self, delayed: DelayedCall) -> None:
        """Runs on the thread that completed an earlier execution."""
        if delayed.one_less():
            self._do((self._send, (delayed,)))

    def _send(self, delayed: DelayedCall) -> None:
        """Send a call, unless it has ended meanwhile."""
        execution, call = delayed.execution, delayed.call
        if self.delayed.pop(execution.job, None) is None:
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
        if self.delayed.pop(delayed.execution.job, None) is None:
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
