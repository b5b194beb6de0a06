"""Tells whether the machine is quiet enough to believe a number.

On shared machines the host takes processor time away without a trace in the guest's own accounting. So before
and after each measured piece, two threads spin for a few milliseconds and compare what they got done with the
best they ever did; a piece counts only if little was lost both times.
"""

from __future__ import annotations

import math
import os
import statistics
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from openhtp.core.errors import InvalidArgument

T = TypeVar("T")

_SPIN_SECONDS = 0.010
# Large enough that zlib gives the interpreter lock up, small enough to be counted finely: about 10 us.
_BLOCK = bytes(64 * 1024)
MOST_LOST = 0.06
# How long one piece may wait for a quiet moment, and all pieces of a run together.
_PATIENCE_SECONDS = 0.5
_PATIENCE_OF_A_RUN = 45.0
# For machines that are known not to become quiet: seconds instead of those of a run.
PATIENCE_SWITCH = "OPENHTP_BENCH_PATIENCE_S"


class BenchProgress(msgspec.Struct, frozen=True):
    """What is being measured now, and how far the run is."""

    what: str
    done: int
    total: int


class MeasuredGoal(msgspec.Struct, frozen=True):
    """A number that should not exceed ``most``, in the same unit."""

    what: str
    unit: str
    measured: float
    most: float

    @property
    def ratio(self) -> float:
        """The measured number as a part of the allowed one; above 1 the goal is missed."""
        return self.measured / self.most


class QuietResult(msgspec.Struct, kw_only=True):
    """The common part of gated results: how many pieces met a quiet moment, and how many did not."""

    quiet_pieces: int = 0
    noisy_pieces: int = 0


class QuietGate:
    """A gate for measurements. ``kept`` and ``dropped`` count quiet and disturbed pieces."""

    def __init__(self) -> None:
        self._best = 0.0
        self._threads = min(2, os.cpu_count() or 1)
        self.kept = 0
        self.dropped = 0
        self._patience_left = _patience()
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

    def measure(self, piece: Callable[[], T], *, tries: int = 3) -> Measurement[T]:
        """Run ``piece`` in a quiet moment, waiting for one; after ``tries`` a disturbed result has to do."""
        for _ in range(tries):
            before = self._await_quiet()
            value = piece()
            if before and self.lost() <= MOST_LOST:
                self.kept += 1
                return Measurement(value, True)
        self.dropped += 1
        return Measurement(value, False)

    def tell(self, result: QuietResult) -> None:
        """Write into a result how the measurements went."""
        result.quiet_pieces, result.noisy_pieces = self.kept, self.dropped

    def _await_quiet(self) -> bool:
        """Wait a little for a quiet moment, as long as the run's patience lasts."""
        begin = time.monotonic()
        while self.lost() > MOST_LOST:
            waited = time.monotonic() - begin
            if waited > min(_PATIENCE_SECONDS, self._patience_left):
                self._patience_left -= waited
                return False
        return True


def _patience() -> float:
    text = os.environ.get(PATIENCE_SWITCH, "")
    if not text:
        return _PATIENCE_OF_A_RUN
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise InvalidArgument(f"{PATIENCE_SWITCH} is {text!r}; expected seconds, 0 or more")
    return seconds


class Measurement(NamedTuple, Generic[T]):
    """A measured value, and whether the machine was quiet before and after."""

    value: T
    quiet: bool


def median(samples: Sequence[Measurement[float]]) -> float:
    """Median of the values of quiet moments, or of all where there are hardly any."""
    quiet = [sample.value for sample in samples if sample.quiet]
    return statistics.median(quiet if len(quiet) >= 2 else [sample.value for sample in samples])


def median_ratio(samples: Sequence[Measurement[float]], others: Sequence[Measurement[float]]) -> float:
    """Median of the ratios round by round: both halves of a round met the same minute."""
    pairs = zip(samples, others, strict=True)
    return median([Measurement(one.value / other.value, one.quiet and other.quiet) for one, other in pairs])


def p99(values: Sequence[float]) -> float:
    """The 99th percentile: a value that occurred."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
