"""One accepted execution, as a future: result(), done(), cancel(), callbacks, and ``await``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.errors import QnnError, error_for_status
from openhtp.rpc import frames
from openhtp.rpc.frames import Record
from openhtp.runtime.options import check_callable, check_timeout

if TYPE_CHECKING:
    from openhtp.runtime.app import AppRun
    from openhtp.runtime.call import Call

Outputs = dict[str, npt.NDArray[Any]]
Notify = Callable[[Any, int], object]

# Guards the hand-over between the completing thread and those who come to wait; held for a few instructions.
_lock = threading.Lock()


class Execution:
    """An execution that was accepted.

    States: *pending* until the device reported its end, then *done* with outputs or an error, for good. It is
    made by ``Graph.execute_async`` only.
    """

    __slots__ = ("_call", "_callbacks", "_error", "_notifier", "_outputs", "_wakers", "job", "record")

    def __init__(self, job: int, call: Call | AppRun) -> None:
        self.job = job
        self.record: Record | None = None
        self._call: Call | AppRun | None = call
        self._notifier = call.notifier
        self._outputs: Outputs | None = None
        self._error: QnnError | None = None
        # Quick wake-ups run by the completing thread; callbacks of users run on the notify thread.
        self._wakers: list[Callable[[], object]] = []
        self._callbacks: list[Callable[[Execution], object]] = []

    def done(self) -> bool:
        """Whether it is over, in whatever way."""
        return self._call is None

    def cancelled(self) -> bool:
        """Whether it was ended by cancel() or an abort signal."""
        return self._error is not None and self._error.code == st.QNN_GRAPH_ERROR_ABORTED.code

    def cancel(self) -> bool:
        """Ask for an early end; False if it is already over.

        An execution that waits ends at once; one that runs ends after its present step, or may finish. Either
        way it is notified once; ``result()`` raises Aborted if the cancel came in time.
        """
        call = self._call
        if call is None:
            return False
        call.link.cancel(self.job)
        return True

    def result(self, timeout: float | None = None) -> Outputs:
        """Wait for the end and return the outputs by name; raises the execution's error.

        Raises TimeoutError if ``timeout`` seconds pass first; the execution goes on then.
        """
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
        """Call ``function(execution)`` on the notify thread once it is over (soon, if it is already)."""
        check_callable("function", function, "the execution")
        with _lock:
            if self._call is not None:
                self._callbacks.append(function)
                return
        self._notifier.post(function, self)

    def __await__(self) -> Generator[Any, None, Outputs]:
        if not self.done():
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
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
                self._wakers.append(wake)
                return
        wake()

    def _block(self, timeout: float | None) -> bool:
        """Wait on this thread until another completes the execution."""
        lock = threading.Lock()
        lock.acquire()
        self._add_waker(lock.release)
        lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        return self.done()

    def _abandon(self) -> None:
        """Nobody waits for it any more, but the device may still write: its memory must not be used again."""
        call = self._call
        if call is not None:
            call.keep_slot()

    def _set_steps(self, times_ns: list[int]) -> None:
        """Step times, which come before the end when a detailed profile was asked for."""
        call = self._call
        if call is not None and call.profile is not None:
            call.profile._step_times_ns = times_ns

    def _complete(self, record: Record, text: str = "") -> None:
        """Called once, by the link, when the device has reported the end."""
        call = self._call
        assert call is not None
        self.record = record
        outputs, error = None, None
        if record.status == 0:
            outputs = call.collect_outputs()
        else:
            status = st.for_code(record.status)
            error = error_for_status(status, text or f"the execution of graph {call.graph_name!r} ended early")
        self._outputs, self._error = outputs, error
        call.finish(record)
        with _lock:
            self._call = None
            wakers, self._wakers = self._wakers, []
            callbacks, self._callbacks = self._callbacks, []
        for wake in wakers:
            wake()
        if call.notify is not None:
            self._notifier.post(call.notify, call.notify_param, record.status)
        for function in callbacks:
            self._notifier.post(function, self)


def complete_from(packet: bytes | memoryview, pending: dict[int, Execution]) -> None:
    """Complete the executions that a packet from the device tells of."""
    kind = packet[0]
    if kind == frames.DONE:
        for fields in frames.RECORD.iter_unpack(packet[frames.BATCH_HEAD.size :]):
            execution = pending.pop(fields[0], None)
            if execution is not None:
                execution._complete(Record._make(fields))
    elif kind == frames.FAILED:
        start = frames.BATCH_HEAD.size
        record = Record._make(frames.RECORD.unpack_from(packet, start))
        text = bytes(packet[start + frames.RECORD.size :]).decode(errors="replace")
        execution = pending.pop(record.job, None)
        if execution is not None:
            execution._complete(record, text)
    elif kind == frames.PROFILE:
        execution = pending.get(frames.PROFILE_HEAD.unpack_from(packet)[3])
        if execution is not None:
            steps = msgspec.msgpack.decode(packet[frames.PROFILE_HEAD.size :], type=list[int])
            execution._set_steps(steps)
