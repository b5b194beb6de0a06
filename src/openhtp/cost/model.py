"""From a compiled graph to its time on a SoC.

Each kernel keeps three units busy: the HMX, the HVX and the DMA, which moves the data that VTCM has no room for.
Its tiles pass through them as through a pipeline, and weights come ahead; ``timeline.py`` puts that together. On
top comes a fixed cost per kernel and one per invocation.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from openhtp.compiler.sizes import KernelSize, most_common, sizes_of
from openhtp.core.precision import NumberFormat
from openhtp.cost.energy import energy_class_of, energy_pj, on_chip_pj, wide_bytes
from openhtp.cost.rates import Band, Parameters, fitted_parameters
from openhtp.cost.running import ONE_CORE, PricedRun, Tuning
from openhtp.hw.clocks import FULL, Clocks
from openhtp.hw.soc import SocSpec
from openhtp.program.htp_program import HtpProgram
from openhtp.program.placement import Move

_READING = (Move.LOAD, Move.FILL, Move.WEIGHTS)
_WRITING = (Move.STORE, Move.SPILL)


class Bound(enum.Enum):
    """The unit that takes most of a kernel's time."""

    HMX = "HMX"
    HVX = "HVX"
    MEMORY = "memory"
    OVERHEAD = "overhead"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime:
    """Modelled time of one kernel: its share of the whole, and how long each unit is busy with it."""

    name: str
    op: str
    kind: str
    nodes: tuple[str, ...]
    us: float
    hmx_us: float
    hvx_us: float
    memory_us: float
    overhead_us: float
    bound: Bound


@dataclass(frozen=True, slots=True)
class NearestFamily:
    """The published networks with the most similar shares of time by kind of op. 1 means equal shares.

    ``median_error`` is how far off their times were, predicted by a fit that had seen none of them.
    """

    name: str
    likeness: float
    median_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Modelled time of one invocation. ``low_us`` to ``high_us`` held 8 of 10 published times in cross-validation.

    ``unseen_share`` is the part of the time in ops that no published network has, and whose price is a guess.
    ``taken_from`` names the SoC whose rates were used if this one has no published times (extrapolated).
    ``energy_pj`` is for ratios between estimates alone (``energy.py``).
    """

    soc: str
    precision: str
    total_us: float
    low_us: float
    high_us: float
    launch_us: float
    macs: int
    weight_bytes: int
    vtcm_peak_bytes: int
    ddr_read_bytes: int
    ddr_written_bytes: int
    energy_pj: float
    ops: tuple[OpTime, ...]
    unseen_share: float = 0.0
    taken_from: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def extrapolated(self) -> bool:
        """Whether the rates are another SoC's."""
        return self.taken_from is not None

    @property
    def nearest_family(self) -> NearestFamily:
        """The published family that this network is most like."""
        return nearest_family(self.ops)

    @property
    def energy_class(self) -> int:
        """One higher for twice the energy."""
        return energy_class_of(self.energy_pj)

    @property
    def steps(self) -> int:
        """Kernels that take time: where the graph can yield."""
        return max(1, sum(op.overhead_us > 0 for op in self.ops))

    def slowest(self, count: int) -> tuple[OpTime, ...]:
        """The kernels that take most, longest first."""
        return tuple(sorted(self.ops, key=lambda op: -op.us)[:count])

    def bounds(self) -> dict[Bound, float]:
        """Microseconds by what bounds the kernels."""
        return {bound: math.fsum(op.us for op in self.ops if op.bound is bound) for bound in Bound}


def estimate(program: HtpProgram, precision: NumberFormat | None = None, clocks: Clocks = FULL) -> Estimate:
    """How long one run of a program takes on the SoC that it is compiled for.

    Args:
        program: a graph compiled for a SoC.
        precision: what a float graph would be computed in; left out, the program's own types decide.
        clocks: how fast the units go, by the votes in force; burst mode unless given.

    Raises:
        UnsupportedFeature: the SoC does not compute in that precision.
        InvalidArgument: the program is quantized already, and to something else.
    """
    return estimate_kernels(sizes_of(program), program.soc, precision, clocks=clocks, tuning=Tuning.of(program))


def estimate_kernels(
    kernels: Sequence[KernelSize],
    soc: SocSpec,
    precision: NumberFormat | None = None,
    parameters: Parameters | None = None,
    *,
    clocks: Clocks = FULL,
    tuning: Tuning = ONE_CORE,
) -> Estimate:
    """Estimate the time of kernels, with the package's parameters or others."""
    parameters = parameters or fitted_parameters()
    run = PricedRun.of(kernels, soc, precision, parameters, clocks, tuning)
    known, formats = run.found, run.formats
    ops = _op_times(run)
    total = known.rates.launch_us + math.fsum(op.us for op in ops)
    main = precision or most_common(formats)
    band = band_of(parameters, main, extrapolated=known.taken_from is not None)
    unseen = math.fsum(op.us for op, kernel in zip(ops, kernels, strict=True) if not kernel.calibrated) / total
    return Estimate(
        soc=soc.name,
        precision=main.value,
        total_us=total,
        low_us=total * band.low,
        high_us=total * band.high,
        launch_us=known.rates.launch_us,
        macs=sum(kernel.macs for kernel in kernels),
        weight_bytes=sum(k.weights * p.weight_bytes for k, p in zip(kernels, formats, strict=True)),
        vtcm_peak_bytes=run.placed.peak_bytes,
        ddr_read_bytes=run.ddr_bytes(*_READING),
        ddr_written_bytes=run.ddr_bytes(*_WRITING),
        energy_pj=_energy(run, clocks),
        ops=ops,
        unseen_share=unseen,
        taken_from=known.taken_from,
        notes=_notes(kernels, soc, known.taken_from, unseen),
    )


def _energy(run: PricedRun, clocks: Clocks) -> float:
    from_ddr = run.ddr_bytes(*Move) + wide_bytes(run.kernels, run.formats)
    return energy_pj(on_chip_pj(run.kernels, run.formats), from_ddr, clocks.core)


def _op_times(run: PricedRun) -> tuple[OpTime, ...]:
    """Each kernel's time from the end of the one before it to its own end; their sum is the network's time."""
    line, busy = run.line, run.busy
    us = (line.end - line.begin)[0]
    waits = np.maximum(0.0, us - line.own[0])
    times_of_ops = []
    for number, kernel in enumerate(run.kernels):
        hmx, hvx, dma, weights, overhead = (
            float(getattr(busy, name)[0, number]) for name in ("hmx", "hvx", "dma", "weights", "overhead")
        )
        times = {
            Bound.HMX: hmx,
            Bound.HVX: hvx,
            Bound.MEMORY: dma + float(waits[number]),
            Bound.OVERHEAD: overhead,
        }
        times_of_ops.append(
            OpTime(
                name=kernel.name,
                op=kernel.op,
                kind=kernel.kind,
                nodes=kernel.nodes,
                us=float(us[number]),
                hmx_us=hmx,
                hvx_us=hvx,
                memory_us=dma + weights,
                overhead_us=overhead,
                bound=max(times, key=lambda bound: times[bound]),
            )
        )
    return tuple(times_of_ops)


def band_of(parameters: Parameters, precision: NumberFormat, *, extrapolated: bool) -> Band:
    """How far published times lie from modelled ones."""
    return parameters.bands["extrapolated" if extrapolated else precision.value]


def _notes(
    kernels: Sequence[KernelSize], soc: SocSpec, taken_from: str | None, unseen_share: float
) -> tuple[str, ...]:
    notes = []
    if taken_from is not None:
        notes.append(
            f"no times are published for {soc.name}: extrapolated from {taken_from} by what is known of both"
        )
    strange = sorted({kernel.op for kernel in kernels if not kernel.calibrated})
    if strange:
        notes.append(
            f"no published network has {', '.join(strange)}: guessed from the number of elements,"
            f" {unseen_share:.0%} of the time"
        )
    return tuple(notes)


def kind_shares(ops: Sequence[OpTime]) -> dict[str, float]:
    """Which part of the time each kind of op takes."""
    times: dict[str, float] = {}
    for op in ops:
        times[op.kind] = times.get(op.kind, 0.0) + op.us
    total = math.fsum(times.values()) or 1.0
    return {kind: us / total for kind, us in sorted(times.items())}


def nearest_family(ops: Sequence[OpTime]) -> NearestFamily:
    """The published family whose shares of time are most similar to these (by the cosine between both)."""
    report = accuracy_report()
    shares = kind_shares(ops)
    likeness = {name: _cosine(shares, profile) for name, profile in report.profiles.items()}
    name = max(likeness, key=lambda family: likeness[family])
    errors = {row.name: row.median for row in report.groups["family"]}
    return NearestFamily(name, likeness[name], errors[name])


def _cosine(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    product = math.fsum(share * other.get(kind, 0.0) for kind, share in one.items())
    return product / (math.hypot(*one.values()) * math.hypot(*other.values()) or 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Errors of modelled against measured times of one group. ``covered`` is the part that lies in the range."""

    name: str
    count: int
    median: float
    p90: float
    bias: float
    covered: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyReport:
    """All groups, by their common trait. Each family of networks was predicted by a fit without it.

    ``profiles`` has the shares of time of each family by kind of op. ``tools/fit_cost_model.py`` found it and
    wrote it down.
    """

    source: str
    times: int
    networks: int
    rank_correlation: dict[str, float]
    groups: dict[str, list[Accuracy]]
    profiles: dict[str, dict[str, float]]


@functools.cache
def accuracy_report() -> AccuracyReport:
    """The report on the parameters that this package has."""
    data = Path(__file__).with_name("accuracy.json").read_bytes()
    return msgspec.json.decode(data, type=AccuracyReport)
