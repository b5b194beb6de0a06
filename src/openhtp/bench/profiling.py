"""The cost of profiling: one network without a profile and with each level, in turns.

CPU time of client and device together, so that other work on the machine counts for little.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import msgspec

import openhtp as htp
from openhtp.bench.quiet import BenchProgress
from openhtp.bench.subjects import import_network, prepare, quantized_network
from openhtp.config import BackendConfig

LEVELS = ("off", "basic", "detailed", "linting", "optrace")


class LevelCost(msgspec.Struct, kw_only=True):
    """CPU time of one run at a level; ``percent`` is the median over rounds of what it adds to no profile."""

    level: str
    cpu_ms: float
    percent: float
    read_us: float


class ProfilingResult(msgspec.Struct, kw_only=True):
    """All levels. ``read_us`` is how long it takes to ask for the events, once the graph is known."""

    network: str
    rounds: int
    runs: int
    rows: list[LevelCost]


def run(
    network: str = "mobilenet_v2", *, rounds: int = 30, runs: int = 4, config: BackendConfig | None = None
) -> Iterator[BenchProgress | ProfilingResult]:
    """Measure in turns; yields progress, and the result last."""
    yield BenchProgress(f"quantizing {network}", 0, rounds)
    model = quantized_network(network)
    spent: dict[str, list[float]] = {level: [] for level in LEVELS}
    reads: dict[str, list[float]] = {level: [] for level in LEVELS}
    with htp.Backend() as backend:
        device = backend.create_device(config=config)
        subject = prepare(network, import_network(device.create_context(), model, network), 1)
        profiles = {level: None if level == "off" else backend.create_profile(level) for level in LEVELS}
        for number in range(rounds + 1):
            yield BenchProgress("with and without a profile", number, rounds + 1)
            # Each round begins with another level, so that none always follows the same one.
            for level in LEVELS[number % len(LEVELS) :] + LEVELS[: number % len(LEVELS)]:
                profile = profiles[level]
                begin = _cpu_ns(device.pid)
                for _ in range(runs):
                    subject.graph.execute(*subject.feeds("registered", 0), profile=profile)
                took = (_cpu_ns(device.pid) - begin) / runs
                asked = time.process_time_ns()
                if profile is not None:
                    profile.events()
                if number:  # the first round warms up
                    spent[level].append(took / 1e6)
                    reads[level].append((time.process_time_ns() - asked) / 1e3)
    yield ProfilingResult(
        network=network, rounds=rounds, runs=runs, rows=[_cost(level, spent, reads) for level in LEVELS]
    )


def _cost(level: str, spent: dict[str, list[float]], reads: dict[str, list[float]]) -> LevelCost:
    ratios = [100 * (with_it / without - 1) for with_it, without in zip(spent[level], spent["off"], strict=True)]
    return LevelCost(
        level=level,
        cpu_ms=statistics.median(spent[level]),
        percent=statistics.median(ratios),
        read_us=statistics.median(reads[level]),
    )


def _cpu_ns(pid: int) -> int:
    """CPU time of this process and of another: Linux numbers the clocks of processes by their complement."""
    return time.process_time_ns() + time.clock_gettime_ns((~pid << 3) | 2)
