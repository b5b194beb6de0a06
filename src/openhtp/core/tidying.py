"""Putting things right after an exception that came from nowhere: Ctrl-C, or an alarm's handler that raises.

Python raises what a signal handler raises on the main thread, in the middle of whatever runs there: at the start
of a function, after a call into C, at the end of a loop's turn. So nothing that is done on that thread is sure to
be finished, and neither is the tidying. Two rules make the runtime safe against it:

* What a call holds is recorded by the same step that takes it (``set.add(call)``, ``slot.holder = call``), and
  giving it back twice does no harm. There is no flag that could be missed.
* An interrupted caller does not tidy up but hands that over to a thread that is never interrupted. ``post`` is
  one call into C, so it has happened before the next exception can come.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from openhtp.core.latches import Latch
from openhtp.core.threads import OwnThread

log = logging.getLogger(__name__)

Task = tuple[Callable[..., object], tuple[object, ...]]

_tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
_thread: threading.Thread | None = None
_starting = threading.Lock()

# Called as ``tidying.post((function, arguments))``, first thing in an ``except BaseException``.
post: Callable[[Task], None] = _tasks.put


def start() -> None:
    """Have the thread ready before there is anything to rescue."""
    with _starting:
        if _thread is None:
            OwnThread(_run, _tasks, name="openhtp-rescue").start()


def flush() -> None:
    """Wait until everything posted so far is done. A program without a backend may call this, too."""
    start()
    done = Latch()
    post((done.unlock, ()))
    done.wait()


def start_anew() -> None:
    """Forget the parent's thread, in the child of a fork."""
    global _tasks, _thread, _starting, post  # noqa: PLW0603
    _tasks, _thread, _starting = queue.SimpleQueue(), None, threading.Lock()
    post = _tasks.put


def _run(tasks: queue.SimpleQueue[Task]) -> None:
    global _thread  # noqa: PLW0603
    with _starting:
        if _thread is not None or tasks is not _tasks:
            return  # the caller that started the other was interrupted, and did it again
        _thread = threading.current_thread()
    while True:
        function, arguments = tasks.get()
        try:
            function(*arguments)
        except BaseException:
            log.exception("tidying up with %r", function)
        del function, arguments
