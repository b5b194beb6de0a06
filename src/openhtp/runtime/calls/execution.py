"""One accepted execution, as a future: result(), done(), cancel(), callbacks, and ``await``."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.errors import ExecutionError, QnnError, error_for_status
from openhtp.core.locks import make_lock
from openhtp.records.profile import DeviceProfile
from openhtp.rpc import frames
from openhtp.rpc.frames import Record
from openhtp.runtime.calls.notify import Notification
from openhtp.runtime.calls.queue import CallbackReturn
from openhtp.runtime.instruments.instrument import Watched, hooked
from openhtp.runtime.objects.argument_checks import check_callable, check_timeout

if TYPE_CHECKING:
    from concurrent.futures import Future

    from openhtp.runtime.calls.call import Call
    from openhtp.runtime.calls.callee import Callee
    from openhtp.runtime.calls.notify import EndedCall
    from openhtp.runtime.objects.app import AppRun

_End = tuple["Execution", "Call"]
"""An execution that ended well, and its call."""
Outputs = dict[str, npt.NDArray[Any]]
Notify = Callable[[Any, int], object]

log = logging.getLogger(__name__)

# Guards the hand-over between the completing thread and the waiting ones; held for a few instructions.
_lock = make_lock("execution")


def renew_lock() -> None:
    """Forget who holds the lock: for the child of a fork, and for tests that check the order of locks."""
    global _lock  # noqa: PLW0603
    _lock = make_lock("execution")


@hooked(_outcome="execution_end")
class Execution:
    """An execution that was accepted.

    States: *pending* until the device has reported its end, then *done* with outputs or an error, for good. Only
    ``Graph.execute_async`` gives one to the user.
    """

    __slots__ = ("_call", "_callbacks", "_error", "_fields", "_notifier", "_outputs", "_wakers", "job")

    def __init__(self, job: int, call: Call | AppRun) -> None:
        self.job = job
        self._fields: tuple[int, ...] = ()
        self._call: Call | AppRun | None = call
        call.execution = self
        self._notifier = call.notifier
        self._outputs: Outputs | None = None
        self._error: QnnError | None = None
        # Quick wake-ups run by the completing thread; callbacks of users run on the notify thread. Most executions
        # have neither.
        self._wakers: tuple[Callable[[], object], ...] = ()
        self._callbacks: tuple[Callable[[Execution], object], ...] = ()

    @property
    def record(self) -> Record | None:
        """How the device saw it, once it is over."""
        return Record(*self._fields) if self._fields else None

    def done(self) -> bool:
        """Whether the execution is over, whatever its outcome."""
        return self._call is None

    @property
    def graph_number(self) -> int | None:
        """Its graph's number on the device; None for a run of an app, and once it is over."""
        call = self._call
        return None if call is None else call.graph_number

    def cancelled(self) -> bool:
        """Whether cancel() or an abort signal ended it."""
        return self._error is not None and self._error.code == st.QNN_GRAPH_ERROR_ABORTED.code

    def cancel(self) -> bool:
        """Ask for an early end; False if the execution is already over.

        A waiting execution ends at once. A running one ends after its present step, or may still finish. Either
        way there is one notification; ``result()`` raises Aborted if the cancel came in time.
        """
        call = self._call
        if call is None:
            return False
        call.link.cancel(self.job)
        return True

    def result(self, timeout: float | None = None) -> Outputs:
        """Wait for the end and return the outputs by name; raises the execution's error.

        Raises TimeoutError if ``timeout`` seconds pass first; the execution then goes on.
        """
        if self._call is not None or timeout is not None:
            self._wait(timeout)
        if self._error is not None:
            raise self._error
        assert self._outputs is not None
        return self._outputs

    def exception(self, timeout: float | None = None) -> QnnError | None:
        """Wait for the end and return its error, or None."""
        self._wait(timeout)
        return self._error

    def add_done_callback(self, function: Callable[[Execution], object]) -> None:
        """Call ``function(execution)`` on the notify thread once the execution is over; soon, if it already is."""
        check_callable("function", function, "the execution")
        with _lock:
            if self._call is not None:
                self._callbacks = (*self._callbacks, function)
                return
        self._notifier.post(function, self)

    def as_future(self) -> Future[Outputs]:
        """A future of the standard library, for ``concurrent.futures.wait`` and ``as_completed``.

        Cancelling the future asks for the execution's early end. It is completed on the notify thread.
        """
        from concurrent.futures import Future  # few programs need it

        future: Future[Outputs] = Future()
        future.add_done_callback(lambda one: self.cancel() if one.cancelled() else None)

        def pass_on(_: Execution) -> None:
            if not future.set_running_or_notify_cancel():
                return
            if self._error is None:
                future.set_result(self.result())
            else:
                future.set_exception(self._error)

        self.add_done_callback(pass_on)
        return future

    def __await__(self) -> Generator[Any, None, Outputs]:
        if not self.done():
            import asyncio  # a program that awaits has loaded it; others need not wait for the import

            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                    loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(None))

            self._add_waker(wake)
            yield from future
        return self.result()

    def _wait(self, timeout: float | None) -> None:
        timeout = check_timeout(timeout)
        call = self._call
        if call is None:
            return
        if not call.link.wait_for(self, timeout):
            raise TimeoutError(f"execution {self.job} is not over after {timeout} s; it goes on")

    def _add_waker(self, wake: Callable[[], object]) -> None:
        with _lock:
            if self._call is not None:
                self._wakers = (*self._wakers, wake)
                return
        wake()

    def _block(self, timeout: float | None) -> bool:
        """Wait on this thread until another completes the execution."""
        lock = threading.Lock()
        lock.acquire()
        wake = lock.release
        self._add_waker(wake)
        if not lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            with _lock:
                self._wakers = tuple(other for other in self._wakers if other is not wake)
        return self.done()

    def _leave(self, error: QnnError) -> None:
        """In the child of a fork: the execution is the parent's. It ends and is notified there."""
        self._error, self._call = error, None
        self._wakers = self._callbacks = ()

    def _set_profile(self, profile: DeviceProfile) -> None:
        """Keep the times of steps and pauses. With a detailed profile they arrive before the end."""
        call = self._call
        if call is not None and call.profile is not None:
            call.profile.told = profile

    def _complete(self, record: Record, text: str = "", *, here: bool = False) -> None:
        """Called by the link when the device has reported the end; a second call does nothing.

        An error in here must neither leave a queued execution unfinished nor reach the link, which has other
        executions to complete. A synchronous execution, or one that was computed ``here``, ends on its caller's
        own thread, so interrupts are passed on to the caller.
        """
        call = self._call
        if call is None:
            return
        self._fields = record
        untold = call.notify is not None or bool(self._callbacks)
        try:
            self._outputs, self._error = self._outcome(call, record, text)
            call.finish(record, untold=untold)
        except BaseException as problem:
            if call.synchronous or here:
                raise
            self._report("finishing execution %d", self.job)
            self._outputs, self._error = None, ExecutionError(f"the execution could not be finished: {problem!r}")
            call.finish(None, untold=untold)
        with _lock:
            self._call = None
            callbacks, self._callbacks = self._callbacks, ()
        self._wake()
        if call.notify is None and not callbacks:
            return
        last, on_return = len(callbacks) if untold else 0, CallbackReturn(call.places, call)
        if call.notify is not None:
            code = 0 if self._error is None else self._error.code
            notification = Notification(call.notify, call.niceness, call.timeout_at, call.link.now)
            self._notifier.post(notification, call.notify_param, code, after=None if last else on_return)
        for number, function in enumerate(callbacks, 1):
            self._notifier.post(function, self, after=on_return if number == last else None)

    def _end_well(self, fields: tuple[int, ...], outputs: Outputs) -> None:
        """Keep the outcome of a plain call; its end follows."""
        self._fields, self._outputs = fields, outputs

    def _let_go(self) -> bool:
        """The end of a plain call, under the lock; returns whether anybody asked to hear of it."""
        self._call = None
        return bool(self._wakers or self._callbacks)

    def _post_callbacks(self) -> None:
        """Call functions that were added after it was seen that there are none."""
        callbacks, self._callbacks = self._callbacks, ()
        for function in callbacks:
            self._notifier.post(function, self)

    def _wake(self) -> None:
        """Wake those who wait for the end, which has come."""
        wakers, self._wakers = self._wakers, ()
        for wake in wakers:
            try:
                wake()
            except BaseException:
                self._report("waking those who wait for execution %d", self.job)

    def _outcome(self, call: Call | AppRun, record: Record, text: str) -> tuple[Outputs | None, QnnError | None]:
        if record.status:
            status = st.for_code(record.status)
            return None, error_for_status(
                status, text or f"the execution of graph {call.graph_name!r} ended early"
            )
        try:
            return call.collect_outputs(), None
        except QnnError as error:
            return None, error

    def __repr__(self) -> str:
        call, error = self._call, self._error
        if call is not None:
            return f"<Execution {self.job} of {call.graph_name!r}, pending>"
        if error is not None:
            return f"<Execution {self.job}, failed: {error}>"
        return f"<Execution {self.job}, done: {', '.join(self._outputs or ())}>"

    def _report(self, text: str, *details: object) -> None:
        with contextlib.suppress(BaseException):  # a log handler may fail too
            log.exception(text, *details)


# Functions for links; users do not need them.


def complete(execution: Execution, record: Record, text: str) -> None:
    """End an execution that the device will not report any more; a second call does nothing."""
    execution._complete(record, text)


def complete_here(execution: Execution, record: Record, text: str) -> None:
    """End an execution that its caller computed, on the caller's thread."""
    execution._complete(record, text, here=True)


def block(execution: Execution, timeout: float | None) -> bool:
    """Wait on this thread until another completes the execution; returns whether it is over."""
    return execution._block(timeout)


def when_over(execution: Execution, call: Callable[[], object]) -> None:
    """Have a quick call made when an execution is over and its outputs are written; at once if it is."""
    execution._add_waker(call)


def expect_end(execution: Execution, at_ns: int) -> None:
    """An execution that has begun is expected to be over at that time of the monotonic clock."""
    execution._notifier.expect(at_ns)


def leave(execution: Execution, error: QnnError) -> None:
    """In the child of a fork: the execution is the parent's."""
    execution._leave(error)


def complete_from(packet: bytes | memoryview, pending: dict[int, Execution]) -> None:
    """Complete the executions that a packet from the device reports.

    Each leaves the table when it is complete, not before: as long as an execution holds anything, it can be found
    there.
    """
    kind = packet[0]
    if kind == frames.DONE:
        for fields in frames.RECORD.iter_unpack(packet[frames.BATCH_HEAD.size :]):
            execution = pending.get(fields[0])
            if execution is not None:
                execution._complete(Record._make(fields))
                pending.pop(fields[0], None)
    elif kind == frames.FAILED:
        start = frames.BATCH_HEAD.size
        record = Record._make(frames.RECORD.unpack_from(packet, start))
        text = bytes(packet[start + frames.RECORD.size :]).decode(errors="replace")
        execution = pending.get(record.job)
        if execution is not None:
            execution._complete(record, text)
            pending.pop(record.job, None)
    elif kind == frames.PROFILE:
        execution = pending.get(frames.PROFILE_HEAD.unpack_from(packet)[3])
        if execution is not None:
            profile = msgspec.msgpack.decode(packet[frames.PROFILE_HEAD.size :], type=DeviceProfile)
            execution._set_profile(profile)


def complete_together(packet: bytes | memoryview, pending: dict[int, Execution]) -> None:
    """Do as ``complete_from``, on a thread that no interrupt comes to.

    Plain calls of one graph that end well, one behind the other, are completed together: each lock is taken once,
    and the notify thread gets one entry.
    """
    if packet[0] != frames.DONE or Watched.executions:
        complete_from(packet, pending)
        return
    ends: list[_End] = []
    callee: Callee | None = None
    for fields in frames.RECORD.iter_unpack(packet[frames.BATCH_HEAD.size :]):
        execution = pending.get(fields[0])
        if execution is None:
            continue
        call = execution._call
        if call is None or fields[1] or not call.is_plain or execution._callbacks:
            _complete_ends(ends, callee, pending)
            ends = []
            execution._complete(Record(*fields))
            pending.pop(fields[0], None)
            continue
        plain: Call = call  # type: ignore[assignment]  # only calls of graphs are plain
        if plain.callee is not callee:
            _complete_ends(ends, callee, pending)
            ends, callee = [], plain.callee
        if not execution._fields:  # otherwise the packet tells of it twice
            execution._end_well(fields, plain.arguments.registered_outputs(callee.ports))
            ends.append((execution, plain))
    _complete_ends(ends, callee, pending)


def _complete_ends(ends: list[_End], callee: Callee | None, pending: dict[int, Execution]) -> None:
    """End plain calls of a graph, as ``Execution._complete`` ends one."""
    if not ends or callee is None:
        return
    try:
        _finish_ends(ends, callee)
    except BaseException:
        log.exception("finishing %d executions", len(ends))
        for execution, _ in ends:
            execution._complete(Record(*execution._fields))
    for execution, _ in ends:
        pending.pop(execution.job, None)


def _finish_ends(ends: list[_End], callee: Callee) -> None:
    registered = callee.link.data_order.registered
    calls: list[Call] = []
    untold: deque[EndedCall] = deque()
    for _, call in ends:
        registered.pop(call, None)
        calls.append(call)
        if call.notify is not None:
            untold.append(call)
    callee.end_calls(calls)
    callee.places.give_back_all(calls, [call for call in calls if call.notify is not None])
    others: list[Execution] = []
    with _lock:
        for execution, _ in ends:
            if execution._let_go():
                others.append(execution)
    for execution in others:
        execution._wake()
    if untold:
        callee.notifier.post_ends(untold)
    for execution in others:
        execution._post_callbacks()
