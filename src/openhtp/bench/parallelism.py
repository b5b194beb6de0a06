"""The gain of computing side by side: two networks one after the other, and at once, on one device."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import openhtp as htp
from openhtp.bench.quiet import BenchProgress, Measurement, QuietGate, QuietResult, median, median_ratio
from openhtp.bench.subjects import MeasuredGraph, import_network, prepare, quantized_network
from openhtp.config import BackendConfig
from openhtp.hw.catalog import find_soc

_SOC = find_soc("SM8650")
# Executions of each of the two in one measured piece.
_RUNS = 4


class ParallelResult(QuietResult, kw_only=True):
    """Two executions of a network, one of each of two graphs: medians of the wall clock."""

    network: str
    processors: int
    in_turns_ms: float = 0.0
    side_by_side_ms: float = 0.0
    speedup: float = 0.0


def run(
    network: str = "resnet50", *, rounds: int = 15, config: BackendConfig | None = None
) -> Iterator[BenchProgress | ParallelResult]:
    """Measure in turns; yields progress, and the result last."""
    result = ParallelResult(network=network, processors=len(os.sched_getaffinity(0)))
    yield BenchProgress(f"quantizing {network}", 0, rounds)
    model, quiet = quantized_network(network), QuietGate()
    in_turns: list[Measurement[float]] = []
    side_by_side: list[Measurement[float]] = []
    with htp.Backend() as backend:
        subjects = _load(backend, model, config)
        for number in range(rounds):
            yield BenchProgress("one after the other, and side by side", number, rounds)
            in_turns.append(quiet.measure(lambda: _in_turns_ms(subjects)))
            side_by_side.append(quiet.measure(lambda: _side_by_side_ms(subjects)))
    result.in_turns_ms, result.side_by_side_ms = median(in_turns), median(side_by_side)
    result.speedup = median_ratio(in_turns, side_by_side)
    quiet.tell(result)
    yield result


def _load(backend: htp.Backend, model: bytes, config: BackendConfig | None) -> list[MeasuredGraph]:
    """The network twice, each with half of the chip, so that both may run at once."""
    device = backend.create_device(soc=_SOC.name, parallel_graphs=True, config=config)
    context = device.create_context()
    half = {"vtcm_bytes": _SOC.vtcm_bytes // 2, "hvx_threads": _SOC.hvx // 2}
    return [prepare(name, import_network(context, model, name, **half), 1) for name in ("first", "second")]


def _in_turns_ms(subjects: list[MeasuredGraph]) -> float:
    begin = time.perf_counter_ns()
    for _ in range(_RUNS):
        for subject in subjects:
            subject.graph.execute_async(*subject.feeds("registered", 0)).result()
    return (time.perf_counter_ns() - begin) / _RUNS / 1e6


def _side_by_side_ms(subjects: list[MeasuredGraph]) -> float:
    begin = time.perf_counter_ns()
    for _ in range(_RUNS):
        under_way = [subject.graph.execute_async(*subject.feeds("registered", 0)) for subject in subjects]
        for execution in under_way:
            execution.result()
    return (time.perf_counter_ns() - begin) / _RUNS / 1e6
