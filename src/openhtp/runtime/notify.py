"""The thread that runs user callbacks, in completion order and never under a lock of ours."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

SLOW_CALLBACK_NS = 10_000_000


class Notifier:
    """Runs callbacks one after another. A slow one delays later notifications and nothing else."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[..., object], tuple[object, ...]] | None]
        self._queue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._start = threading.Lock()

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Run ``function(*args)`` soon."""
        if self._thread is None:
            self._ensure_thread()
        self._queue.put((function, args))

    def close(self) -> None:
        """End the thread after the callbacks already posted; does not wait for a callback that hangs."""
        if self._thread is not None:
            self._queue.put(None)
            if threading.current_thread() is not self._thread:
                self._thread.join(timeout=1.0)

    def _ensure_thread(self) -> None:
        with self._start:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="openhtp-notify", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        clock = time.monotonic_ns
        while (item := self._queue.get()) is not None:
            function, args = item
            begin = clock()
            try:
                function(*args)
            except Exception:
                # A callback's failure is its author's to see; the executions behind it are not at fault.
                log.exception("notify callback %r raised", function)
            took = clock() - begin
            if took > SLOW_CALLBACK_NS:
                log.warning("notify callback %r took %.1f ms; later notifications waited", function, took / 1e6)
            del item, function, args
