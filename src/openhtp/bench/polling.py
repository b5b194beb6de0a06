"""The gain of RPC polling: the round trip of a trivial graph asleep and polling, in turns in one run."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

import openhtp as htp
from openhtp.bench.quiet import BenchProgress, Measurement, QuietGate, QuietResult, median, median_ratio
from openhtp.bench.subjects import Arrays, trivial_graph
from openhtp.config import BackendConfig
from openhtp.hw.power import MAX_RPC_POLLING_US

# Calls of one measured piece, and the pause between two of them in the second kind of piece.
_CALLS = 200
_PAUSE_S = 0.001
_SPACED_CALLS = 40


class PollingRow(msgspec.Struct, kw_only=True):
    """Round trips of one habit of calling: medians of the wall clock, and the ratio of the two, round by round."""

    calls: str
    asleep_us: float
    polling_us: float
    ratio: float


class PollingResult(QuietResult, kw_only=True):
    """``execute`` of a trivial graph with a vote of 0, and with the longest polling time."""

    processors: int
    polling_time_us: int = MAX_RPC_POLLING_US
    rows: list[PollingRow] = msgspec.field(default_factory=list)


def run(*, rounds: int = 15, config: BackendConfig | None = None) -> Iterator[BenchProgress | PollingResult]:
    """Measure in turns; yields progress, and the result last."""
    result = PollingResult(processors=len(os.sched_getaffinity(0)), rows=[])
    quiet = QuietGate()
    with htp.Backend() as backend:
        device = backend.create_device(config=config)
        graph = trivial_graph(device.create_context())
        power = device.create_power_config()
        feeds = {"x": np.ones((1, 8), np.float32)}
        for calls, piece in (
            ("one after the other", lambda: _round_trip_us(graph, feeds, _CALLS, 0.0)),
            (f"every {_PAUSE_S * 1e3:g} ms", lambda: _round_trip_us(graph, feeds, _SPACED_CALLS, _PAUSE_S)),
        ):
            asleep: list[Measurement[float]] = []
            polling: list[Measurement[float]] = []
            for number in range(rounds):
                yield BenchProgress(f"calls {calls}: asleep, and polling", number, rounds)
                asleep.append(_measured(quiet, power, 0, piece))
                polling.append(_measured(quiet, power, MAX_RPC_POLLING_US, piece))
            ratio = median_ratio(polling, asleep)
            result.rows.append(
                PollingRow(calls=calls, asleep_us=median(asleep), polling_us=median(polling), ratio=ratio)
            )
    quiet.tell(result)
    yield result


def _measured(
    quiet: QuietGate, power: htp.PowerConfig, polling_us: int, piece: Callable[[], float]
) -> Measurement[float]:
    power.set(rpc_polling_us=polling_us)
    piece()  # both sides now sleep, or poll, as this vote asks
    return quiet.measure(piece)


def _round_trip_us(graph: htp.Graph, feeds: Arrays, calls: int, pause_s: float) -> float:
    took = []
    for _ in range(calls):
        begin = time.perf_counter_ns()
        graph.execute(feeds)
        took.append(time.perf_counter_ns() - begin)
        if pause_s:
            time.sleep(pause_s)
    return statistics.median(took) / 1e3
