"""How a long call that is no execution ends early: finalizing and creating contexts carry signals, too.

The caller waits for the work instead of doing it, so that it is back soon after the signal, whatever the work is
in the middle of. Work that nobody waits for any more is told so, and gives back what it made.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from openhtp.core import status as st, tidying
from openhtp.core.errors import Aborted, QnnError, TimedOut
from openhtp.core.latches import Promise
from openhtp.core.status import Status
from openhtp.core.threads import OwnThread

if TYPE_CHECKING:
    from openhtp.device.tasks import Task
    from openhtp.rpc import messages as ms
    from openhtp.runtime.calls.interrupt import Interrupt
    from openhtp.runtime.calls.sheet import Fill
    from openhtp.runtime.objects.profile import Profile
    from openhtp.runtime.objects.signal import Signal

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
        outcome: Promise[_T] = Promise()
        news = News()

        def give_back() -> None:
            if outcome.exception() is None:
                discard(outcome.result())

        try:
            outcome.then(lambda: news.put(None))
            OwnThread(outcome.settle, work, name="openhtp-stoppable").start()
            self.wait(news, outcome.done)
            return outcome.result()
        except BaseException:
            tidying.post((outcome.then, (give_back,)))
            raise


def carrying(
    profile: Profile | None,
    signal: Signal | Stop | None,
    what: str,
    statuses: tuple[Status, Status],
    work: Callable[[Fill | None, Stop | None], _T],
) -> _T:
    """Do work that carries handles: a profile that is filled in, a signal that may stop it.

    A call that is part of another is given that one's stop: the signal is carried already.
    No context manager: who is interrupted within ``__enter__`` or at the start of ``__exit__`` would keep both.
    """
    if isinstance(signal, Stop):
        return carrying(profile, None, what, statuses, lambda fill, _: work(fill, signal))
    sheet = None if profile is None else profile.sheet
    stop = None if signal is None else Stop(signal.interrupt, what, statuses)
    holder = object()

    def give_back() -> None:
        if sheet is not None:
            sheet.abandon(holder)
        if signal is not None:
            signal.interrupt.end(stop)

    try:
        if sheet is not None:
            sheet.begin(holder)
        if signal is not None and stop is not None:
            signal.interrupt.begin(stop, stop)
        result = work(None if sheet is None else sheet.note, stop)
        give_back()
    except BaseException:
        tidying.post((give_back, ()))  # before anything else: what follows may be interrupted again
        give_back()
        raise
    return result


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
    except BaseException as error:
        task.cancel(error if isinstance(error, (Aborted, TimedOut)) else None)
        raise
