"""The gain and cost of pre-emption: how soon an urgent graph starts while a long one runs, and at what price."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

import openhtp as htp
from openhtp.bench.quiet import BenchProgress, MeasuredGoal, p99
from openhtp.bench.subjects import MeasuredGraph, import_network, prepare, quantized_network, trivial_graph
from openhtp.config import BackendConfig
from openhtp.device.config import DeviceConfig
from openhtp.records.trace import Stepped
from openhtp.runtime.links.device_process import DeviceOptions
from openhtp.runtime.objects.chosen_options import ExtensionsConfig
from openhtp.runtime.objects.device import Device

# A long run that takes this much longer than the best one was disturbed by something else on the machine.
DISTURBED = 1.08
# Where a graph's memory happens to lie makes a process faster or slower by several percent, for good; so the
# measurement is shared out over several pairs of fresh device processes.
_LOADS = 12
_WARM_UP = 3
_TRACED_RUNS = 12


class PreemptResult(msgspec.Struct, kw_only=True):
    """All times of the wall clock. Waits are from the client's submit of the urgent graph to its start.

    Both graphs have run before: the first execution of a graph takes a millisecond or two more, once.

    The long run that an urgent one came into is the probe of the machine: if it took notably longer than it
    should, pauses not counted, the processor was taken away and the wait says nothing about pre-emption. Such
    samples are left out, except in the figures called ``all``. The latency and the cost of yield points compare
    the best of many runs in several pairs of processes, of which the median counts. The longest step is the
    median over undisturbed runs.
    """

    network: str
    latency_ms: float = 0.0
    steps: int = 0
    longest_step_share: float = 0.0
    longest_step_share_p99: float = 0.0
    wait_ms_p50: float = 0.0
    wait_ms_p99: float = 0.0
    wait_ms_max: float = 0.0
    wait_share_p99: float = 0.0
    wait_share_p99_all: float = 0.0
    yield_points_cost: float = 0.0
    preempted: int = 0
    samples: int = 0
    samples_all: int = 0


class UrgentWait(NamedTuple):
    """One urgent execution: how long it waited, how long the long run took, and how often that run made way."""

    wait_ms: float
    run_ms: float
    yields: int


def run(
    network: str = "resnet50", *, samples: int = 600, rounds: int = 160, config: BackendConfig | None = None
) -> Iterator[BenchProgress | PreemptResult]:
    """Measure; yields progress, and the result last."""
    result = PreemptResult(network=network)
    steps = 1 + samples
    yield BenchProgress(f"quantizing {network}", 0, steps)
    model = quantized_network(network)
    dice = random.Random(1)
    costs: list[tuple[float, float]] = []
    waits: list[UrgentWait] = []
    lengths: list[list[float]] = []
    loads = min(_LOADS, rounds)
    for load in range(loads):
        with htp.Backend() as backend:
            cut, urgent = load_long(backend, model, ExtensionsConfig(config), yield_points=True)
            whole, _ = load_long(backend, model, ExtensionsConfig(config), yield_points=False)
            result.steps = cut.graph.steps
            # The client holds a whole network as Python objects; looking through them takes longer than a step.
            gc.collect()
            gc.freeze()
            yield BenchProgress("cost of yield points", len(waits) + 1, steps)
            costs.append(_best_ms(cut, whole, _part(rounds, load, loads)))
            lengths += step_shares(cut)
            result.latency_ms = statistics.median(with_points for with_points, _ in costs)
            for _ in range(_part(samples, load, loads)):
                yield BenchProgress("urgent graph against a running one", len(waits) + 1, steps)
                waits.append(urgent_wait(cut, urgent, result.latency_ms * dice.uniform(0.05, 0.9)))
    result.yield_points_cost = statistics.median(cut / whole for cut, whole in costs) - 1
    longest = max(zip(*lengths, strict=True), key=statistics.median)
    result.longest_step_share, result.longest_step_share_p99 = statistics.median(longest), p99(longest)
    _judge_waits(result, waits)
    yield result


def _part(total: int, load: int, loads: int) -> int:
    """How many of ``total`` fall on one load; the first ones take the rest."""
    return total // loads + (load < total % loads)


def _judge_waits(result: PreemptResult, every: list[UrgentWait]) -> None:
    undisturbed = [wait for wait in every if wait.run_ms <= result.latency_ms * DISTURBED] or every
    result.samples, result.samples_all = len(undisturbed), len(every)
    result.preempted = sum(wait.yields for wait in undisturbed)
    result.wait_ms_p50 = statistics.median(wait.wait_ms for wait in undisturbed)
    result.wait_ms_p99 = p99([wait.wait_ms for wait in undisturbed])
    result.wait_ms_max = max(wait.wait_ms for wait in undisturbed)
    result.wait_share_p99 = result.wait_ms_p99 / result.latency_ms
    result.wait_share_p99_all = p99([wait.wait_ms for wait in every]) / result.latency_ms


def load_long(
    backend: htp.Backend, model: bytes, extensions: ExtensionsConfig, *, yield_points: bool
) -> tuple[MeasuredGraph, htp.Graph]:
    """A network of low priority and an urgent graph on a device of their own."""
    config = DeviceConfig(yield_points=yield_points, **extensions.device({}))
    device = Device(backend, DeviceOptions(config=config), extensions=extensions)
    extensions.vote(device)
    context = device.create_context(queue_depth=8)
    graph = import_network(context, model, "long")
    graph.set_config(priority="low")
    urgent = trivial_graph(context)
    urgent.set_config(priority="high")
    for _ in range(_WARM_UP):  # the first execution of any graph makes its memory and binds it
        urgent.execute(_urgent_feeds(urgent))
    return prepare("long", graph, 2), urgent


def _urgent_feeds(urgent: htp.Graph) -> dict[str, Any]:
    return {"x": np.zeros(urgent.tensors["x"].shape, np.float32)}


def run_ms(subject: MeasuredGraph) -> float:
    """One undisturbed run as the device saw it."""
    execution = subject.graph.execute_async(*subject.feeds("registered", 0))
    execution.result()
    assert execution.record is not None
    return (execution.record.finished_ns - execution.record.started_ns) / 1e6


def step_shares(subject: MeasuredGraph) -> list[list[float]]:
    """How long each step took of several undisturbed runs, in parts of the run's time as the device saw it."""
    device = subject.graph.context.device
    device.start_trace()
    for _ in range(_TRACED_RUNS):
        subject.graph.execute(*subject.feeds("registered", 0))
    steps: dict[int, list[int]] = {}
    for record in device.stop_trace().records:
        if type(record) is Stepped:
            steps.setdefault(record.job, []).append(record.end - record.t)
    return [[length / sum(run) for length in run] for run in steps.values()]


def _best_ms(cut: MeasuredGraph, whole: MeasuredGraph, rounds: int) -> tuple[float, float]:
    """The best time with and without yield points: in the best of many runs nothing else took part."""
    with_points, without = [], []
    for number in range(_WARM_UP + rounds):
        times = [run_ms(subject) for subject in (cut, whole, whole, cut)]
        if number >= _WARM_UP:
            with_points += [times[0], times[3]]
            without += times[1:3]
    return min(with_points), min(without)


def urgent_wait(subject: MeasuredGraph, urgent: htp.Graph, after_ms: float) -> UrgentWait:
    """Submit the urgent graph a while after the long one was."""
    feeds = _urgent_feeds(urgent)
    low = subject.graph.execute_async(*subject.feeds("registered", 0))
    time.sleep(after_ms / 1e3)
    submitted_ns = time.monotonic_ns()  # the device's records are of the same clock
    high = urgent.execute_async(feeds)
    high.result()
    low.result()
    assert high.record is not None
    assert low.record is not None
    ran = low.record.finished_ns - low.record.started_ns - low.record.paused_ns
    waited = high.record.started_ns - submitted_ns
    return UrgentWait(waited / 1e6, ran / 1e6, low.record.yields)


# The most that an urgent graph may take of a long run, at the p99.
MOST_URGENT_SHARE = 0.07


class UrgentRow(msgspec.Struct, frozen=True):
    """How long an urgent graph took beside a long one, in parts of the long one's run.

    It counts from the call to the end, the graph's own time included. ``samples`` were not disturbed by anything
    else on the machine; the ``disturbed`` ones count in ``p99_share_all`` alone. If all were disturbed, they count
    everywhere.
    """

    what: str
    median_share: float
    p99_share: float
    p99_share_all: float
    samples: int
    disturbed: int = 0


def urgent_row(what: str, undisturbed_us: Sequence[float], every_us: Sequence[float], long_us: float) -> UrgentRow:
    """Make a row from times of undisturbed samples, if there are any, and of all samples."""
    believed = sorted(undisturbed_us or every_us)
    median, p99_us = believed[len(believed) // 2], p99(believed)
    disturbed = len(every_us) - len(undisturbed_us)
    shares = (median / long_us, p99_us / long_us, p99(every_us) / long_us)
    return UrgentRow(what, *shares, len(undisturbed_us), disturbed)


def urgent_goals(rows: Iterable[UrgentRow]) -> list[MeasuredGoal]:
    """The goals for a more urgent graph, and the figures that were reached."""
    return [
        MeasuredGoal(
            f"p99 of an urgent graph: {row.what}",
            "% of the long run",
            100 * row.p99_share,
            100 * MOST_URGENT_SHARE,
        )
        for row in rows
    ]
