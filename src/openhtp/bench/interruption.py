"""How soon networks let go of the NPU: an urgent graph that comes in, and an abort, in parts of the run.

The networks are files, so they may be anybody's. Each runs alone in a device process; an urgent graph is
submitted, or an abort signal triggered, at a moment of the run that is drawn by lot. Pieces that the machine
disturbed are left out: those where the spin probe lost time, and those whose long run took notably longer than it
should.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

import openhtp as htp
from openhtp.bench.preemption import DISTURBED, UrgentWait, load_long, run_ms, step_shares, urgent_wait
from openhtp.bench.quiet import BenchProgress, Measurement, QuietGate, QuietResult, p99
from openhtp.bench.subjects import MeasuredGraph
from openhtp.config import BackendConfig
from openhtp.core.tensor import TensorKind
from openhtp.frontend.onnx_import import load
from openhtp.runtime.objects.chosen_options import ExtensionsConfig

_RUNS = 8


class InterruptRow(msgspec.Struct, frozen=True, kw_only=True):
    """One network: its run, its steps, and shares of the run: the longest step, and 99th percentiles of delays.

    ``yield_points_cost`` compares the best of a few runs with and without them. ``samples`` are undisturbed; where
    there are hardly any, all of them count, and ``disturbed`` says so.
    """

    network: str
    precision: str
    latency_ms: float
    steps: int
    longest_step_share: float
    urgent_share_p99: float
    abort_share_p99: float
    yield_points_cost: float
    samples: int
    disturbed: bool


class InterruptResult(QuietResult, kw_only=True):
    """All networks. Times are of the wall clock."""

    rows: list[InterruptRow] = msgspec.field(default_factory=list)


class _Delay(NamedTuple):
    """How long something took to have an effect, and how long the run had taken (None if it was cut short)."""

    delay_ms: float
    run_ms: float | None


def run(
    models: Mapping[str, bytes], *, samples: int = 40, config: BackendConfig | None = None
) -> Iterator[BenchProgress | InterruptResult]:
    """Measure; yields progress, and the result last."""
    result, quiet, dice = InterruptResult(), QuietGate(), random.Random(1)
    for number, (name, model) in enumerate(models.items()):
        gc.unfreeze()
        yield BenchProgress(name, number, len(models))
        result.rows.append(_row(name, model, samples, quiet, dice, ExtensionsConfig(config)))
    quiet.tell(result)
    yield result


def _row(
    name: str, model: bytes, samples: int, quiet: QuietGate, dice: random.Random, extensions: ExtensionsConfig
) -> InterruptRow:
    with htp.Backend() as backend:
        subject, urgent = load_long(backend, model, extensions, yield_points=True)
        whole, _ = load_long(backend, model, extensions, yield_points=False)
        # The client holds a whole network as Python objects; looking through them takes longer than a step.
        gc.collect()
        gc.freeze()
        pairs = [(run_ms(subject), run_ms(whole)) for _ in range(_RUNS)]
        best_ms, whole_ms = map(min, zip(*pairs, strict=True))
        longest = max(map(statistics.median, zip(*step_shares(subject), strict=True)))
        moments = [best_ms * dice.uniform(0.05, 0.9) for _ in range(samples)]
        waits = [_measured_wait(subject, urgent, moment, quiet) for moment in moments]
        aborts = [_measured_abort(subject, moment, quiet) for moment in moments]
        kept_waits, kept_aborts = _undisturbed(waits, best_ms), _undisturbed(aborts, best_ms)
        few = min(len(kept_waits), len(kept_aborts)) < samples // 4
        urgent_ms = [each.value.delay_ms for each in waits] if few else kept_waits
        abort_ms = [each.value.delay_ms for each in aborts] if few else kept_aborts
        return InterruptRow(
            network=name,
            precision=_precision(model),
            latency_ms=best_ms,
            steps=subject.graph.steps,
            longest_step_share=longest,
            urgent_share_p99=p99(urgent_ms) / best_ms,
            abort_share_p99=p99(abort_ms) / best_ms,
            yield_points_cost=best_ms / whole_ms - 1,
            samples=len(urgent_ms),
            disturbed=few,
        )


def _measured_abort(subject: MeasuredGraph, moment_ms: float, quiet: QuietGate) -> Measurement[_Delay]:
    return quiet.measure(lambda: _abort(subject, moment_ms), tries=2)


def _measured_wait(
    subject: MeasuredGraph, urgent: htp.Graph, moment_ms: float, quiet: QuietGate
) -> Measurement[_Delay]:
    measured: Measurement[UrgentWait] = quiet.measure(lambda: urgent_wait(subject, urgent, moment_ms), tries=2)
    return Measurement(_Delay(measured.value.wait_ms, measured.value.run_ms), measured.quiet)


def _abort(subject: MeasuredGraph, after_ms: float) -> _Delay:
    """Trigger an abort a while after the run was begun."""
    signal = subject.graph.context.device.backend.create_signal()
    execution = subject.graph.execute_async(*subject.feeds("registered", 0), signal=signal)
    time.sleep(after_ms / 1e3)
    triggered_ns = time.monotonic_ns()
    try:
        signal.trigger()
        execution.result()
    except (htp.Aborted, htp.WrongState):  # the run may just have ended
        pass
    return _Delay((time.monotonic_ns() - triggered_ns) / 1e6, None)


def _undisturbed(delays: Sequence[Measurement[_Delay]], best_ms: float) -> list[float]:
    return [
        each.value.delay_ms
        for each in delays
        if each.quiet and (each.value.run_ms is None or each.value.run_ms <= best_ms * DISTURBED)
    ]


def _precision(model: bytes) -> str:
    """The encoding of most tensors between ops."""
    specs = [spec for spec in load(model).tensors.values() if spec.kind is TensorKind.NATIVE]
    bits = Counter(
        spec.dtype.bits if spec.dtype.is_fixed_point else 0
        for spec in specs
        if spec.dtype.is_fixed_point or spec.dtype.is_float
    )
    most = max(bits, key=lambda each: bits[each], default=0)
    return f"{most} bits" if most else "float"
