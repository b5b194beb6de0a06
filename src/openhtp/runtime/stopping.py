"""How a long call that is no execution ends early: finalizing and creating contexts carry signals, too.

The caller waits for the work instead of doing it, so that it is back soon after the signal, whatever the work is
in the middle of. Work that nobody waits for any more is told so, and gives back what it made.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from openhtp.core import status as st
from openhtp.core.errors import Aborted, QnnError, TimedOut
from openhtp.core.status import Status
from openhtp.runtime import rescue

if TYPE_CHECKING:
    from openhtp.device.tasks import Task
    from openhtp.rpc import messages as ms
    from openhtp.runtime.calls.interrupt import Interrupt
    from openhtp.runtime.signal import Signal

_T = TypeVar("_T")

# Whoever waits looks again when something is put here.
News = queue.SimpleQueue[None]

OF_GRAPH = st.QNN_GRAPH_ERROR_ABORTED, st.QNN_GRAPH_ERROR_TIMED_OUT
OF_CONTEXT = st.QNN_CONTEXT_ERROR_ABORTED, st.QNN_CONTEXT_ERROR_TIMED_OUT


class Stop:
    """Of one call that carries a signal: whether to go on, and who is to be woken if not."""

    def __init__(self, interrupt: Interrupt, what: str, statuses: tuple[Status, Status]) -> None:
        self._interrupt = interrupt
        self._what = what
        self._statuses = statuses
        self._listeners: set[News] = set()
        timeout_us = interrupt.timeout_us
        self._until_s = None if timeout_us is None else time.monotonic() + timeout_us / 1e6

    def error(self) -> QnnError | None:
        """Why the call should end now, if it should."""
        if self._interrupt.is_triggered:
            return Aborted(f"{self._what} was aborted by its signal", self._statuses[0])
        if self._until_s is not None and time.monotonic() >= self._until_s:
            return TimedOut(
                f"{self._what} took longer than the {self._interrupt.timeout_us} us of its signal",
                self._statuses[1],
            )
        return None

    def check(self) -> None:
        """End the call here if it should end."""
        error = self.error()
        if error is not None:
            raise error

    def wake_all(self) -> None:
        """The signal was triggered."""
        for news in list(self._listeners):
            news.put(None)

    def wait(self, news: News, done: Callable[[], bool]) -> None:
        """Wait until it is done; each change of that is told in ``news``. Raises when the call should end."""
        self._listeners.add(news)
        try:
            while not done():
                self.check()
                left_s = None if self._until_s is None else max(0.0, self._until_s - time.monotonic())
                with contextlib.suppress(queue.Empty):
                    news.get(timeout=left_s)
        finally:
            self._listeners.discard(news)

    def run(self, work: Callable[[], _T], discard: Callable[[_T], object] = lambda result: None) -> _T:
        """Have work done on another thread. When the call ends before it, what comes of it is discarded."""
        self.check()
        outcome: Future[_T] = Future()
        news = News()
        outcome.add_done_callback(lambda _: news.put(None))
        threading.Thread(target=_do, args=(outcome, work), name="openhtp-stoppable", daemon=True).start()
        try:
            self.wait(news, outcome.done)
        except BaseException:
            outcome.add_done_callback(lambda late: None if late.exception() else discard(late.result()))
            raise
        return outcome.result()


def _do(outcome: Future[_T], work: Callable[[], _T]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:
        outcome.set_exception(error)


@contextlib.contextmanager
def stopping(signal: Signal | None, what: str, statuses: tuple[Status, Status]) -> Iterator[Stop | None]:
    """Let a signal, if one is given, stop what is done within."""
    if signal is None:
        yield None
        return
    interrupt = signal._interrupt
    stop = Stop(interrupt, what, statuses)
    try:
        try:
            interrupt.begin(stop, stop)
            yield stop
        finally:
            interrupt.end(stop)
    except BaseException:
        rescue.post((interrupt.end, (stop,)))  # again, since that may have been what was interrupted
        raise


def do_task(
    task: Task[Any],
    conclude: Callable[[Task[Any]], ms.Reply],
    stop: Stop | None,
    take_back: Callable[[ms.Reply], None],
) -> ms.Reply:
    """Do a task of a device in this process, here or, where a signal may end the call, on another thread."""

    def work() -> ms.Reply:
        task.run()
        return conclude(task)

    if stop is None:
        return work()
    try:
        return stop.run(work, take_back)
    except (Aborted, TimedOut) as error:
        task.cancel(error)
        raise
