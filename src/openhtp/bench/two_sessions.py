"""Two sessions of ONNX Runtime's QNN provider on one NPU: a short model is called while a long one runs."""

from __future__ import annotations

import random
import statistics
import threading
import time
from typing import Any, NamedTuple

from openhtp import zoo
from openhtp.bench.subjects import quantized_network
from openhtp.bench.urgency import UrgentRow, urgent_row
from openhtp.capi.check import provider_session
from openhtp.capi.paths import backend_path

# A long run that takes this much longer than usual, what the urgent ones in it compute not counted, was disturbed.
_DISTURBED = 1.08
_ALONE = 10
_PRIORITIES = {
    "equal priorities, session.run on two threads": ("normal", "normal"),
    "low and high, session.run on two threads": ("low", "high"),
}


class SpanNs(NamedTuple):
    """When a run began and ended."""

    begin: int
    end: int


def measure(urgent_model: bytes, network: str, samples: int) -> tuple[float, list[UrgentRow]]:
    """How long the network takes alone, in milliseconds, and the urgent model beside it."""
    model, rows, alone_ns = quantized_network(network), [], 0.0
    long_feeds, urgent_feeds = (zoo.random_feeds(each, 1, seed=7)[0] for each in (model, urgent_model))
    for words, (background, urgent) in _PRIORITIES.items():
        slow = provider_session(model, backend_path(), {"qnn_context_priority": background})
        quick = provider_session(urgent_model, backend_path(), {"qnn_context_priority": urgent})
        urgent_alone_ns = min(_run_ns(quick, urgent_feeds) for _ in range(_ALONE))
        alone_ns = statistics.median(_run_ns(slow, long_feeds) for _ in range(_ALONE))
        long_runs, urgent_runs = _beside(slow, long_feeds, quick, urgent_feeds, samples, alone_ns)
        every = [span.end - span.begin for span in urgent_runs]
        usual = _Usual(alone_ns, urgent_alone_ns)
        kept = [
            span.end - span.begin for span in urgent_runs if not usual.is_disturbed(span, long_runs, urgent_runs)
        ]
        rows.append(urgent_row(words, kept or every, every, alone_ns))
        del slow, quick
    return alone_ns / 1e6, rows


def _run_ns(session: Any, feeds: Any) -> int:
    begin = time.perf_counter_ns()
    session.run(None, feeds)
    return time.perf_counter_ns() - begin


def _beside(
    slow: Any, long_feeds: Any, quick: Any, urgent_feeds: Any, samples: int, alone_ns: float
) -> tuple[list[SpanNs], list[SpanNs]]:
    """Run one model all the time, and another now and then; tells when each of them ran."""
    clock, dice, goes_on = time.perf_counter_ns, random.Random(1), [True]
    long_runs: list[SpanNs] = []
    urgent_runs: list[SpanNs] = []

    def keep_running() -> None:
        while goes_on:
            begin = clock()
            slow.run(None, long_feeds)
            long_runs.append(SpanNs(begin, clock()))

    thread = threading.Thread(target=keep_running)
    thread.start()
    try:
        for _ in range(samples):
            time.sleep(alone_ns / 1e9 * dice.uniform(0.2, 1.5))
            begin = clock()
            quick.run(None, urgent_feeds)
            urgent_runs.append(SpanNs(begin, clock()))
    finally:
        goes_on.clear()
        thread.join()
    return long_runs, urgent_runs


class _Usual(NamedTuple):
    """How long the runs take alone, in nanoseconds."""

    long: float
    urgent: float

    def is_disturbed(self, urgent: SpanNs, long_runs: list[SpanNs], urgent_runs: list[SpanNs]) -> bool:
        """Whether a long run into which an urgent one came took longer than the urgent ones in it explain."""
        for run in long_runs:
            if run.begin < urgent.end and urgent.begin < run.end:
                inside = sum(run.begin < span.end and span.begin < run.end for span in urgent_runs)
                if run.end - run.begin > self.long * _DISTURBED + self.urgent * inside:
                    return True
        return False
