"""Slow work beside the loop: making programs ready takes up to seconds and must not hold up executions."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Work = Callable[[], Callable[[], None]]


class Loader:
    """One thread that runs slow work; what the work returns is then called on the loop's thread."""

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="openhtp-loader", daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> None:
        """Run ``work`` off the loop's thread. It must turn its own failures into what it returns."""
        self._queue.put(work)

    def close(self) -> None:
        """Let the thread end after what it is doing now."""
        self._queue.put(None)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            self._post(work())
