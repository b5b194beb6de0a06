"""What pre-emption costs and brings: how soon an urgent graph starts while a long one runs, and at what price."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

import openhtp as htp
from openhtp.bench.queueing import Progress
from openhtp.bench.quiet import Quiet, Sample
from openhtp.bench.subjects import Subject, import_network, prepare, quantized_network, trivial_graph
from openhtp.device.build import DeviceConfig
from openhtp.runtime.device import Device
from openhtp.runtime.rpc_link import DeviceOptions

# Samples per piece: long enough to be worth a probe, short enough to fall between two disturbances.
_PIECE = 10


class PreemptResult(msgspec.Struct, kw_only=True):
    """All times of the wall clock. Waits are from the client's submit of the urgent graph to its start.

    The figures are of quiet moments, as far as there were any: pieces of a few samples with a probe of the
    machine before and after. Those called ``all`` are of every sample, disturbed or not.
    """

    network: str
    latency_ms: float = 0.0
    steps: int = 0
    wait_ms_p50: float = 0.0
    wait_ms_p99: float = 0.0
    wait_ms_max: float = 0.0
    wait_share_p99: float = 0.0
    wait_share_p99_all: float = 0.0
    yield_points_cost: float = 0.0
    yield_points_rounds: int = 0
    preempted: int = 0
    samples: int = 0
    samples_all: int = 0
    quiet_pieces: int = 0
    noisy_pieces: int = 0


class _Wait(NamedTuple):
    """One urgent execution: how long it waited, and how often the long run made way."""

    wait_ms: float
    yields: int


def run(network: str = "resnet50", *, samples: int = 400, rounds: int = 40) -> Iterator[Progress | PreemptResult]:
    """Measure; yields progress, and the result last."""
    result = PreemptResult(network=network)
    pieces = -(-samples // _PIECE)
    steps = 2 + rounds + pieces
    with htp.Backend() as backend:
        yield Progress(f"quantizing {network}", 0, steps)
        model = quantized_network(network)
        yield Progress("loading it with and without yield points", 1, steps)
        cut, urgent = _load(backend, model, yield_points=True)
        whole, _ = _load(backend, model, yield_points=False)
        result.steps = cut.graph.steps
        quiet = Quiet()
        pairs = []
        for number in range(rounds):
            yield Progress("cost of yield points", 2 + number, steps)
            pairs.append(quiet.measure(lambda: _pair_ms(cut, whole)))
        _judge_cost(result, pairs)
        dice = random.Random(1)
        found = []
        for number in range(pieces):
            yield Progress("urgent graph against a running one", 2 + rounds + number, steps)
            found.append(quiet.measure(lambda: _waits(cut, urgent, result.latency_ms, dice)))
        _judge_waits(result, found)
        result.quiet_pieces, result.noisy_pieces = quiet.kept, quiet.dropped
    yield result


def _judge_cost(result: PreemptResult, pairs: list[Sample[tuple[float, float]]]) -> None:
    """The two ways to run are compared within each pair, so that a slow minute hits both alike."""
    kept = [pair.value for pair in pairs if pair.quiet] or [pair.value for pair in pairs]
    result.latency_ms = statistics.median(cut for cut, _ in kept)
    result.yield_points_cost = statistics.median(cut / whole for cut, whole in kept) - 1
    result.yield_points_rounds = len(kept)


def _judge_waits(result: PreemptResult, found: list[Sample[list[_Wait]]]) -> None:
    every = [wait for piece in found for wait in piece.value]
    kept = [wait for piece in found if piece.quiet for wait in piece.value] or every
    result.samples, result.samples_all = len(kept), len(every)
    result.preempted = sum(wait.yields for wait in kept)
    result.wait_ms_p50 = statistics.median(wait.wait_ms for wait in kept)
    result.wait_ms_p99 = _p99(kept)
    result.wait_ms_max = max(wait.wait_ms for wait in kept)
    result.wait_share_p99 = result.wait_ms_p99 / result.latency_ms
    result.wait_share_p99_all = _p99(every) / result.latency_ms


def _p99(waits: list[_Wait]) -> float:
    ordered = sorted(wait.wait_ms for wait in waits)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def _load(backend: htp.Backend, model: bytes, *, yield_points: bool) -> tuple[Subject, htp.Graph]:
    config = DeviceConfig(yield_points=yield_points)
    device = backend._adopt(Device(backend, DeviceOptions(config=config)))
    context = device.create_context(queue_depth=8)
    graph = import_network(context, model, "long")
    graph.set_config(priority="low")
    urgent = trivial_graph(context)
    urgent.set_config(priority="high")
    return prepare("long", graph, 2), urgent


def _run_ms(subject: Subject) -> float:
    """One undisturbed run as the device saw it."""
    execution = subject.graph.execute_async(*subject.feeds("registered", 0))
    execution.result()
    assert execution.record is not None
    return (execution.record.finished_ns - execution.record.started_ns) / 1e6


def _pair_ms(cut: Subject, whole: Subject) -> tuple[float, float]:
    """With and without yield points, in an order that favours neither; the best of two each."""
    first, second, third, fourth = (_run_ms(subject) for subject in (cut, whole, whole, cut))
    return min(first, fourth), min(second, third)


def _waits(subject: Subject, urgent: htp.Graph, latency_ms: float, dice: random.Random) -> list[_Wait]:
    """Submit the urgent graph at random moments of the long one's run."""
    memory = urgent.context.register_memory(256)
    x, y = (memory.array(urgent.tensors[name]) for name in ("x", "y"))
    found = []
    for _ in range(_PIECE):
        low = subject.graph.execute_async(*subject.feeds("registered", 0))
        time.sleep(latency_ms / 1e3 * dice.uniform(0.05, 0.9))
        submitted_ns = time.monotonic_ns()  # the device's records are of the same clock
        high = urgent.execute_async({"x": x}, {"y": y})
        high.result()
        low.result()
        assert high.record is not None
        assert low.record is not None
        waited = high.record.started_ns - submitted_ns
        found.append(_Wait(waited / 1e6, low.record.yields))
    return found
