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
from openhtp.bench.subjects import Subject, import_network, prepare, quantized_network, trivial_graph
from openhtp.device.build import DeviceConfig
from openhtp.runtime.device import Device
from openhtp.runtime.rpc_link import DeviceOptions

# A long run that takes this much longer than it should was disturbed by something else on the machine.
_DISTURBED = 1.2


class Sample(NamedTuple):
    """One urgent execution: how long it waited, and how long the long run it came into took."""

    wait_ms: float
    run_ms: float
    yields: int


class PreemptResult(msgspec.Struct, kw_only=True):
    """All times of the wall clock. Waits are from the urgent submit to its start, as the device saw them.

    ``disturbed`` samples are left out: in them the long run itself took notably longer than it should, so the
    machine was taken away, and a wait says nothing about pre-emption.
    """

    network: str
    latency_ms: float = 0.0
    steps: int = 0
    wait_ms_p50: float = 0.0
    wait_ms_p99: float = 0.0
    wait_ms_max: float = 0.0
    wait_share_p99: float = 0.0
    yield_points_cost: float = 0.0
    preempted: int = 0
    samples: int = 0
    disturbed: int = 0


def run(network: str = "resnet50", *, samples: int = 400, rounds: int = 60) -> Iterator[Progress | PreemptResult]:
    """Measure; yields progress, and the result last."""
    result = PreemptResult(network=network)
    with htp.Backend() as backend:
        yield Progress(f"quantizing {network}", 0, 4)
        model = quantized_network(network)
        yield Progress("loading it with and without yield points", 1, 4)
        cut, urgent = _load(backend, model, yield_points=True)
        whole, _ = _load(backend, model, yield_points=False)
        result.steps = cut.graph.steps
        yield Progress("cost of yield points", 2, 4)
        cut_times, whole_times = [], []
        for _ in range(rounds):  # in turns, so that a slow moment hits both alike
            cut_times.append(_run_ms(cut))
            whole_times.append(_run_ms(whole))
        result.latency_ms = _lower_quartile(cut_times)
        result.yield_points_cost = result.latency_ms / _lower_quartile(whole_times) - 1
        yield Progress("urgent graph against a running one", 3, 4)
        seen = _samples(cut, urgent, samples, result.latency_ms)
        kept = [sample for sample in seen if sample.run_ms <= result.latency_ms * _DISTURBED] or seen
        waits = sorted(sample.wait_ms for sample in kept)
        result.samples, result.disturbed = len(kept), len(seen) - len(kept)
        result.preempted = sum(sample.yields for sample in kept)
        result.wait_ms_p50 = statistics.median(waits)
        result.wait_ms_p99 = waits[min(len(waits) - 1, int(len(waits) * 0.99))]
        result.wait_ms_max = waits[-1]
        result.wait_share_p99 = result.wait_ms_p99 / result.latency_ms
    yield result


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


def _lower_quartile(values: list[float]) -> float:
    """What a run takes when it is left alone: on a shared machine the upper half tells of others."""
    return statistics.quantiles(values, n=4)[0]


def _samples(subject: Subject, urgent: htp.Graph, count: int, latency_ms: float) -> list[Sample]:
    """Submit the urgent graph at random moments of the long one's run."""
    dice = random.Random(1)
    memory = urgent.context.register_memory(256)
    x, y = (memory.array(urgent.tensors[name]) for name in ("x", "y"))
    found = []
    for _ in range(count):
        low = subject.graph.execute_async(*subject.feeds("registered", 0))
        time.sleep(latency_ms / 1e3 * dice.uniform(0.05, 0.9))
        high = urgent.execute_async({"x": x}, {"y": y})
        high.result()
        low.result()
        assert high.record is not None
        assert low.record is not None
        ran = low.record.finished_ns - low.record.started_ns - low.record.paused_ns
        waited = high.record.started_ns - high.record.received_ns
        found.append(Sample(waited / 1e6, ran / 1e6, low.record.yields))
    return found
