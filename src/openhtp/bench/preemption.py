"""What pre-emption costs and brings: how soon an urgent graph starts while a long one runs, and at what price."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator

import msgspec

import openhtp as htp
from openhtp.bench.queueing import Progress
from openhtp.bench.quiet import Quiet, believed, median
from openhtp.bench.subjects import Subject, import_network, prepare, quantized_network, trivial_graph
from openhtp.device.build import DeviceConfig
from openhtp.runtime.device import Device
from openhtp.runtime.rpc_link import DeviceOptions

_PIECE_CALLS = 12


class PreemptResult(msgspec.Struct, kw_only=True):
    """All times of the wall clock. Waits are from the urgent submit to its start, as the device saw them."""

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
    quiet_pieces: int = 0
    noisy_pieces: int = 0


def run(network: str = "resnet50", *, samples: int = 200, rounds: int = 7) -> Iterator[Progress | PreemptResult]:
    """Measure; yields progress, and the result last."""
    result = PreemptResult(network=network, samples=samples)
    with htp.Backend() as backend:
        yield Progress(f"quantizing {network}", 0, 4)
        model = quantized_network(network)
        yield Progress("loading it with and without yield points", 1, 4)
        cut, urgent = _load(backend, model, yield_points=True)
        whole, _ = _load(backend, model, yield_points=False)
        result.steps = cut.graph.steps
        quiet = Quiet()
        yield Progress("cost of yield points", 2, 4)
        cut_times, whole_times = [], []
        for _ in range(rounds):
            cut_times.append(quiet.measure(lambda: _seconds_per_run(cut)))
            whole_times.append(quiet.measure(lambda: _seconds_per_run(whole)))
        result.latency_ms = median(cut_times) * 1e3
        result.yield_points_cost = median(cut_times) / median(whole_times) - 1
        yield Progress("urgent graph against a running one", 3, 4)
        waits, result.preempted = _waits(cut, urgent, samples, result.latency_ms / 1e3, quiet)
        result.samples = len(waits)
        result.wait_ms_p50 = statistics.median(waits)
        result.wait_ms_p99 = waits[min(len(waits) - 1, int(len(waits) * 0.99))]
        result.wait_ms_max = waits[-1]
        result.wait_share_p99 = result.wait_ms_p99 / result.latency_ms
        result.quiet_pieces, result.noisy_pieces = quiet.kept, quiet.dropped
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


def _seconds_per_run(subject: Subject) -> float:
    """Back to back, so that nothing but the device's own work counts."""
    begin = time.perf_counter()
    executions = [subject.graph.execute_async(*subject.feeds("registered", n)) for n in range(_PIECE_CALLS)]
    executions[-1].result()
    return (time.perf_counter() - begin) / _PIECE_CALLS


def _waits(
    subject: Subject, urgent: htp.Graph, samples: int, latency_s: float, quiet: Quiet
) -> tuple[list[float], int]:
    """Submit the urgent graph at random moments of the long one's run; waits in ms, sorted."""
    dice = random.Random(1)
    context = urgent.context
    memory = context.register_memory(256)
    x, y = (memory.array(urgent.tensors[name]) for name in ("x", "y"))

    def piece() -> tuple[float, int]:
        low = subject.graph.execute_async(*subject.feeds("registered", 0))
        time.sleep(latency_s * dice.uniform(0.05, 0.9))
        high = urgent.execute_async({"x": x}, {"y": y})
        high.result()
        low.result()
        assert high.record is not None
        assert low.record is not None
        return (high.record.started_ns - high.record.received_ns) / 1e6, low.record.yields

    # A percentile needs many values: disturbed ones count too where there are few others.
    found = believed([quiet.measure(piece, tries=1) for _ in range(samples)], at_least=100)
    return sorted(wait for wait, _ in found), sum(yields for _, yields in found)
