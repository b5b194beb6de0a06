"""Tells whether the machine is quiet enough to believe a number.

On shared machines the host takes processor time away without a trace in the guest's own accounting. So before
and after each measured piece, two threads spin for a few milliseconds and compare what they got done with the
best they ever did; a piece counts only if little was lost both times.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_SPIN_SECONDS = 0.010
# Large enough that zlib gives the interpreter lock up, small enough to be counted finely: about 10 us.
_BLOCK = bytes(64 * 1024)
MOST_LOST = 0.06


class Quiet:
    """A gate for measurements. ``kept`` and ``dropped`` tell how it went."""

    def __init__(self) -> None:
        self._best = 0.0
        self._threads = min(2, os.cpu_count() or 1)
        self.kept = 0
        self.dropped = 0
        for _ in range(20):
            self.lost()

    def lost(self) -> float:
        """Part of the processor time that was taken away just now, 0 to 1."""
        done = [0] * self._threads

        def spin(number: int) -> None:
            count = 0
            end = time.perf_counter() + _SPIN_SECONDS
            while time.perf_counter() < end:
                zlib.crc32(_BLOCK)
                count += 1
            done[number] = count

        threads = [threading.Thread(target=spin, args=(n,)) for n in range(1, self._threads)]
        for thread in threads:
            thread.start()
        spin(0)
        for thread in threads:
            thread.join()
        rate = min(done) / _SPIN_SECONDS
        self._best = max(self._best, rate)
        return 1 - rate / self._best

    def measure(self, piece: Callable[[], T], *, tries: int = 6) -> T:
        """Run ``piece`` until it fell into a quiet moment; after ``tries`` the last result has to do."""
        for attempt in range(tries):
            before = self.lost()
            while before > MOST_LOST and attempt < tries - 1:
                before = self.lost()
                attempt += 1
            result = piece()
            if before <= MOST_LOST and self.lost() <= MOST_LOST:
                self.kept += 1
                return result
        self.dropped += 1
        return result
