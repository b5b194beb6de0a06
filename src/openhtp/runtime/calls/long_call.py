"""How a long call other than an execution ends early: finalizing and creating contexts carry signals, too.

The caller waits for the work instead of doing it, so it returns soon after the signal, whatever step the work has
reached. Work that nobody waits for any more is cancelled and gives back what it made.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from openhtp.core import status as st, tidying
from openhtp.core.errors import Aborted, QnnError, QueueFull, TimedOut, WrongState
from openhtp.core.latches import Promise
from openhtp.core.locks import make_lock
from openhtp.core.status import Status
from openhtp.core.threads import OwnThread
from openhtp.runtime.objects.lifecycle import Life, State

if TYPE_CHECKING:
    from openhtp.device.tasks import Task
    from openhtp.rpc import messages as ms
    from openhtp.runtime.calls.sheet import Fill
    from openhtp.runtime.links.link import Link
    from openhtp.runtime.objects.profile import Profile
    from openhtp.runtime.objects.signal import Signal


_T = TypeVar("_T")

# A waiting thread looks again when something is put here.
News = queue.SimpleQueue[None]

OF_GRAPH = st.QNN_GRAPH_ERROR_ABORTED, st.QNN_GRAPH_ERROR_TIMED_OUT
OF_CONTEXT = st.QNN_CONTEXT_ERROR_ABORTED, st.QNN_CONTEXT_ERROR_TIMED_OUT


class WaitingPoint(Protocol):
    """The place where a call waits until it is served or its signal ends it."""

    def wake_all(self) -> None:
        """Let all waiting threads look again."""


class Interrupt:
    """Serves one call at a time, from ``begin`` to ``end``."""

    def __init__(self, life: Life, timeout_us: int | None) -> None:
        self.timeout_us = timeout_us
        # The call that carries it.
        self.holder: object = None
        self._life = life
        self._lock = make_lock("signal")
        self._triggered = False
        self.target: tuple[Link, int] | None = None
        self._waiting_at: WaitingPoint | None = None

    def trigger(self) -> None:
        """Abort the call, however far it has come."""
        with self._lock:
            if self.holder is None:
                raise WrongState(
                    "no call carries this signal, so there is nothing to abort",
                    st.QNN_SIGNAL_ERROR_SIGNAL_IDLE,
                )
            self._triggered = True
            target, waiting_at = self.target, self._waiting_at
        if waiting_at is not None:
            waiting_at.wake_all()
        if target is not None:
            target[0].cancel(target[1])

    def free(self) -> None:
        """Serve no more calls; refused while a call carries the signal."""
        with self._lock:
            if self.holder is not None:
                raise WrongState("the signal is in use", st.QNN_SIGNAL_ERROR_SIGNAL_IN_USE)
            self._life.end(State.FREED)

    @property
    def is_triggered(self) -> bool:
        """Whether the call that carries the signal was aborted."""
        return self._triggered

    def begin(self, holder: object, waiting_at: WaitingPoint) -> None:
        """Serve a call, which may have to wait at ``waiting_at``."""
        self._life.require("use")
        with self._lock:
            if self.holder is not None:
                raise WrongState(
                    "the signal is already in use by another call; create one signal per queued call",
                    st.QNN_GRAPH_ERROR_SIGNAL_IN_USE,
                )
            self._triggered = False
            self.target = None
            self._waiting_at = waiting_at
            self.holder = holder

    def interruption(self, now_ns: int, deadline_ns: int | None) -> QnnError | None:
        """Why the call should not wait for a place any longer, if it should not."""
        if self._triggered:
            return Aborted("aborted by its signal while waiting for a place in the queue")
        if deadline_ns is not None and now_ns >= deadline_ns:
            return TimedOut(f"no place in the queue within {self.timeout_us} us")
        return None

    def attach(self, holder: object, link: Link, job: int) -> None:
        """The call was sent: from now on it can be cancelled on the device."""
        with self._lock:
            if self.holder is not holder:
                return  # it is over already
            self._waiting_at = None
            self.target = (link, job)
            triggered = self._triggered
        if triggered:  # between taking the place and being sent
            link.cancel(job)

    def end(self, holder: object) -> None:
        """Let go of the signal if it is this call's; twice does nothing."""
        with self._lock:
            if self.holder is holder:
                self.holder = self.target = self._waiting_at = None


class Impatience(Interrupt):
    """The interrupt of a call that must not wait at all."""

    def interruption(self, now_ns: int, deadline_ns: int | None) -> QnnError | None:
        """Ends the call as soon as the queue is full."""
        return QueueFull("the queue is full, and the call must not wait")


class CallStop:
    """Says whether a call that carries a signal should go on, and wakes its waiting threads if it should not."""

    def __init__(self, interrupt: Interrupt, what: str, statuses: tuple[Status, Status]) -> None:
        self.interrupt = interrupt
        self._what = what
        self._statuses = statuses
        self._listeners: set[News] = set()
        timeout_us = interrupt.timeout_us
        self._until_s = None if timeout_us is None else time.monotonic() + timeout_us / 1e6

    def error(self) -> QnnError | None:
        """Why the call should end now, if it should."""
        if self.interrupt.is_triggered:
            return Aborted(f"{self._what} was aborted by its signal", self._statuses[0])
        if self._until_s is not None and time.monotonic() >= self._until_s:
            return TimedOut(
                f"{self._what} took longer than the {self.interrupt.timeout_us} us of its signal",
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
        """Wait until ``done()``; each change is announced in ``news``. Raises when the call should end."""
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
        """Have work done on another thread. If the call ends before the work, the result is discarded."""
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
    signal: Signal | CallStop | None,
    what: str,
    statuses: tuple[Status, Status],
    work: Callable[[Fill | None, CallStop | None], _T],
) -> _T:
    """Do work that carries handles: a profile that is filled in, a signal that may stop the work.

    A call within another call gets the outer call's stop, as that one carries the signal already.
    This is no context manager: a caller interrupted in ``__enter__`` or early in ``__exit__`` would keep both.
    """
    if isinstance(signal, CallStop):
        return carrying(profile, None, what, statuses, lambda fill, _: work(fill, signal))
    sheet = None if profile is None else profile.sheet
    stop = None if signal is None else CallStop(signal.interrupt, what, statuses)
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
        result = work(None if sheet is None else sheet.fill, stop)
        give_back()
    except BaseException:
        tidying.post((give_back, ()))  # first of all: the next line may be interrupted again
        give_back()
        raise
    return result


def do_task(
    task: Task[Any],
    conclude: Callable[[Task[Any]], ms.Reply],
    stop: CallStop | None,
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
