"""Slow work for a client, beside the loop: making programs ready can take seconds, and must not delay others.

A task runs on a thread of the pool and is concluded on the loop's thread. If its client leaves or frees its
context before the task is over, the task is cancelled. It notices that where it calls ``check``, and gives
everything back.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from openhtp.core.errors import ExecutionError, InvalidHandle, QnnError
from openhtp.device.answers import Answer, bare, error_reply, in_words, timed, unexpected
from openhtp.device.contexts import DeviceContext
from openhtp.device.loop import SchedulerFailed
from openhtp.device.sessions import Session

log = logging.getLogger(__name__)

_T = TypeVar("_T")

# Tasks under way at once. Those of one context are done in the order in which they were asked for.
THREADS = 2


class TaskState(enum.Enum):
    """How far a task is."""

    WAITING = "waiting"
    RUNNING = "running"
    OVER = "over"


class Cancelled(Exception):
    """Raised where the result is not wanted any more."""


class Task(Generic[_T]):
    """Slow ``work`` for a context, or for a whole session.

    ``finish`` then makes the answer; if the task fails or is cancelled, ``undo`` gives back what it took.

    ``discard`` gives back a result that comes when nobody wants it any more.
    """

    def __init__(
        self,
        what: str,
        owner: DeviceContext | Session,
        *,
        work: Callable[[Task[_T]], _T],
        finish: Callable[[_T], Answer],
        discard: Callable[[_T], None] = lambda result: None,
        undo: Callable[[], None] = lambda: None,
    ) -> None:
        self.what = what
        self.owner = owner
        self.state = TaskState.WAITING
        self.cancelled = False
        # The number of the request that it answers; 0 if requests have no numbers.
        self.request = 0
        self._now: Callable[[], int] = _no_time
        self._asked_ns = self._worked_ns = 0
        self._reason: QnnError | None = None
        self.on_end: Callable[[], None] = _nothing
        self._progress: tuple[int, int, str] = (0, 0, "")
        self._work, self._finish, self._discard, self._undo = work, finish, discard, undo
        self._results: list[_T] = []
        self._error: QnnError | None = None

    def time(self, now: Callable[[], int], asked_ns: int) -> None:
        """Have the answer tell the time since the request, and the time that the work itself took."""
        self._now, self._asked_ns = now, asked_ns

    def describe(self) -> dict[str, object]:
        """What other clients may know of the task: its progress, and its present activity."""
        done, total, now = self._progress
        state = "cancelled" if self.cancelled else self.state.value
        return {"what": self.what, "state": state, "done": done, "total": total, "now": now}

    def cancel(self, reason: QnnError | None = None) -> None:
        """Ask for its early end. Its results so far are given back.

        ``reason`` is the answer to its client; without one, the answer says that the context was freed.
        """
        self._reason = self._reason or reason
        self.cancelled = True

    # For the work itself

    def check(self) -> None:
        """End here if the task was cancelled."""
        if self.cancelled:
            raise Cancelled

    def advance(self, done: int, total: int, now: str) -> None:
        """Note the progress, and end here if the task was cancelled."""
        self._progress = done, total, now
        self.check()

    # For the pool

    def run(self) -> None:
        """Do the slow part, on any thread. Never raises: ``conclude`` reports errors."""
        self.state = TaskState.RUNNING
        begin = self._now()
        try:
            self.check()
            self._results.append(self._work(self))
        except Cancelled:
            pass
        except QnnError as error:
            self._error = bare(error)
        except Exception as error:
            log.exception("%s failed", self.what)
            self._error = ExecutionError(f"{self.what} failed: {in_words(error)}")
        self._worked_ns = self._now() - begin

    def conclude(self) -> Answer:
        """Make the answer, on the loop's thread, once ``run`` is over. Raises SchedulerFailed only."""
        self.state = TaskState.OVER
        self.owner.session.tasks.discard(self)
        try:
            if self._error is not None:
                raise self._error
            if not self.cancelled:
                answer = self._finish(self._results.pop())
                return timed(answer, self._now() - self._asked_ns, self._worked_ns)
            for result in self._results:
                self._discard(result)
            raise self._reason or InvalidHandle(f"the context was freed while {self.what} was under way")
        except QnnError as error:
            self._undo()
            return error_reply(bare(error))
        except SchedulerFailed:
            self._undo()
            raise
        except Exception as error:
            log.exception("the end of %s failed", self.what)
            self._undo()
            return error_reply(unexpected(self.what, error))
        finally:
            self._results.clear()
            self.on_end()


def _nothing() -> None:
    """Do nothing at the end of a task."""


def _no_time() -> int:
    """Nobody asked how long the task takes."""
    return 0


class Pool:
    """The threads that do tasks. At the end of a task, ``then`` is called on the loop's thread."""

    def __init__(self, post: Callable[[Callable[[], None]], None], threads: int = THREADS) -> None:
        self._post = post
        self._waiting: deque[tuple[Task[object], Callable[[], None]]] = deque()
        self._busy: set[int] = set()
        self._closed = False
        self._news = threading.Condition()
        for number in range(threads):
            threading.Thread(target=self._serve, name=f"openhtp-task-{number}", daemon=True).start()

    def submit(self, task: Task[object], then: Callable[[], None]) -> None:
        """Have a task done."""
        with self._news:
            self._waiting.append((task, then))
            self._news.notify()

    def close(self) -> None:
        """Let the threads end after what they are doing now."""
        with self._news:
            self._closed = True
            self._news.notify_all()

    def _serve(self) -> None:
        going = True
        while going:
            try:
                going = self._do_one()
            except Exception:
                log.exception("the end of a task could not be reported")

    def _do_one(self) -> bool:
        """A function of its own, so that no local keeps a task alive while the thread waits for the next."""
        with self._news:
            while (next_task := self._take()) is None and not self._closed:
                self._news.wait()
        if next_task is None:
            return False
        task, then = next_task
        task.run()
        try:
            self._post(then)  # before the context's next task begins: the ends come in order, too
        finally:
            with self._news:
                self._busy.discard(task.owner.number)
                self._news.notify_all()
        return True

    def _take(self) -> tuple[Task[object], Callable[[], None]] | None:
        """The first task that waits for nothing but a thread."""
        if self._closed:
            return None
        for index, (task, then) in enumerate(self._waiting):
            if task.owner.number not in self._busy:
                self._busy.add(task.owner.number)
                del self._waiting[index]
                return task, then
        return None
