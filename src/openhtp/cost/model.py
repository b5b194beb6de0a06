"""From a compiled graph to its time on a SoC.

Each kernel keeps three things busy: the HMX, the HVX and the way to DDR for tensors that do not fit into VTCM.
They overlap partly, so its time is the root of the sum of squares: the longest one, and some of the others. On top
comes a fixed cost per kernel. Weights are different: they can be fetched long before they are needed, so they are
weighed against the whole network, in the same way but with an exponent of its own. Each invocation adds a fixed
cost.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.core.kinds import MATRIX_KINDS
from openhtp.cost.demand import demand_of
from openhtp.cost.number_format import NumberFormat
from openhtp.cost.rates import Band, Parameters, SocRates, find_rates, fitted_parameters, prices
from openhtp.cost.sizes import KernelSize, sizes_of
from openhtp.hw.soc import SocSpec
from openhtp.program.htp_program import HtpProgram

NO_TIME = 1e-12
"""Keeps the share of a network without work defined."""


class Bound(enum.Enum):
    """What takes most of a kernel's time."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Modelled time of one invocation. ``low_us`` to ``high_us`` held 8 of 10 published times in cross-validation.

    ``taken_from`` names the SoC whose rates were used if this one has no published times (extrapolated).
    """

    soc: str
    precision: str
    total_us: float
    low_us: float
    high_us: float
    launch_us: float
    macs: int
    weight_bytes: int
    ops: tuple[OpTime, ...]
    taken_from: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def extrapolated(self) -> bool:
        """Whether the rates are another SoC's."""
        return self.taken_from is not None

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


def estimate(program: HtpProgram, precision: NumberFormat | None = None) -> Estimate:
    """How long one run of a program takes on the SoC that it is compiled for.

    Args:
        program: a graph compiled for a SoC.
        precision: what a float graph would be computed in; left out, the program's own types decide.

    Raises:
        UnsupportedFeature: the SoC does not compute in that precision.
        InvalidArgument: the program is quantized already, and to something else.
    """
    return estimate_kernels(sizes_of(program), program.soc, precision)


def estimate_kernels(
    kernels: Sequence[KernelSize],
    soc: SocSpec,
    precision: NumberFormat | None = None,
    parameters: Parameters | None = None,
) -> Estimate:
    """The same for kernels, with the package's parameters or others."""
    parameters = parameters or fitted_parameters()
    found = find_rates(soc, parameters)
    given = precisions_of(kernels, precision)
    verify_offered(soc, given)
    parts = _busy_times(kernels, given, soc, found.rates, parameters)
    ops = _spread(kernels, parts, parameters.overlap)
    total = found.rates.launch_us + math.fsum(op.us for op in ops)
    main = most_common(given)
    band = band_of(parameters, main, extrapolated=found.taken_from is not None)
    return Estimate(
        soc=soc.name,
        precision=main.value,
        total_us=total,
        low_us=total * band.low,
        high_us=total * band.high,
        launch_us=found.rates.launch_us,
        macs=sum(kernel.macs for kernel in kernels),
        weight_bytes=sum(k.weights * p.weight_bytes for k, p in zip(kernels, given, strict=True)),
        ops=ops,
        taken_from=found.taken_from,
        notes=_notes(kernels, soc, found.taken_from),
    )


@dataclass(frozen=True, slots=True)
class _Busy:
    hmx: float
    hvx: float
    spill: float
    overhead: float
    weights: float

    @property
    def own(self) -> float:
        """The kernel's time without its weights."""
        return math.sqrt(self.hmx**2 + self.hvx**2 + self.spill**2) + self.overhead


def _busy_times(
    kernels: Sequence[KernelSize],
    precisions: Sequence[NumberFormat],
    soc: SocSpec,
    rates: SocRates,
    parameters: Parameters,
) -> list[_Busy]:
    price = {each: prices(rates, each, parameters) for each in set(precisions)}
    found = []
    for kernel, precision in zip(kernels, precisions, strict=True):
        amounts = demand_of(kernel, precision, soc.vtcm_bytes, parameters.padding)
        cost = {name: amount * price[precision][name] for name, amount in amounts.items()}
        hmx = sum(time for name, time in cost.items() if name in MATRIX_KINDS)
        spill, weights = cost.pop("spill", 0.0), cost.pop("weights", 0.0)
        overhead = cost.pop("launch", 0.0) + cost.pop("edge", 0.0)
        found.append(_Busy(hmx, sum(cost.values()) - hmx, spill, overhead, weights))
    return found


def _spread(kernels: Sequence[KernelSize], parts: Sequence[_Busy], overlap: float) -> tuple[OpTime, ...]:
    """Share the network's time out to its kernels, so that they add up to it.

    The whole is ``(own^q + weights^q)^(1/q)``; each side's share is its derivative times itself.
    """
    own = math.fsum(part.own for part in parts) + NO_TIME
    weights = math.fsum(part.weights for part in parts)
    whole = (own**overlap + weights**overlap) ** (1 / overlap)
    own_share = (own / whole) ** (overlap - 1)
    weight_share = (weights / whole) ** (overlap - 1)
    found = []
    for kernel, part in zip(kernels, parts, strict=True):
        busy = {
            Bound.HMX: part.hmx,
            Bound.HVX: part.hvx,
            Bound.MEMORY: part.spill + part.weights * weight_share,
            Bound.OVERHEAD: part.overhead,
        }
        found.append(
            OpTime(
                name=kernel.name,
                op=kernel.op,
                kind=kernel.kind,
                nodes=kernel.nodes,
                us=part.own * own_share + part.weights * weight_share,
                hmx_us=part.hmx,
                hvx_us=part.hvx,
                memory_us=part.spill + part.weights,
                overhead_us=part.overhead,
                bound=max(busy, key=lambda bound: busy[bound]),
            )
        )
    return tuple(found)


def precisions_of(kernels: Sequence[KernelSize], asked: NumberFormat | None) -> list[NumberFormat]:
    """The precision of every kernel; kernels of integers count as the rest does."""
    fixed = {k.precision for k in kernels if k.precision not in (None, NumberFormat.FLOAT)}
    if asked is not None and fixed and fixed != {asked}:
        words = " and ".join(sorted(each.value for each in fixed if each))
        raise InvalidArgument(f"the model is quantized already, to {words}; leave the precision out")
    known = [kernel.precision for kernel in kernels if kernel.precision is not None]
    usual = most_common(known) if known else NumberFormat.FLOAT
    if asked is not None and not fixed:
        return [asked] * len(kernels)
    return [kernel.precision or usual for kernel in kernels]


def most_common(precisions: Sequence[NumberFormat]) -> NumberFormat:
    """The precision that most kernels have, which is called that of the network."""
    return max(NumberFormat, key=lambda each: sum(precision is each for precision in precisions))


def verify_offered(soc: SocSpec, precisions: Sequence[NumberFormat]) -> None:
    """Refuse half precision where the SoC has none."""
    if NumberFormat.FLOAT in precisions and not soc.fp16:
        raise UnsupportedFeature(f"{soc.name} has no half precision; quantize the model, or say w8a8 or w8a16")


def band_of(parameters: Parameters, precision: NumberFormat, *, extrapolated: bool) -> Band:
    """How far published times lie from modelled ones."""
    return parameters.bands["extrapolated" if extrapolated else precision.value]


def _notes(kernels: Sequence[KernelSize], soc: SocSpec, taken_from: str | None) -> tuple[str, ...]:
    notes = []
    if taken_from is not None:
        notes.append(
            f"no times are published for {soc.name}: extrapolated from {taken_from} by what is known of both"
        )
    strange = sorted({kernel.op for kernel in kernels if not kernel.calibrated})
    if strange:
        notes.append(f"no published network has {', '.join(strange)}: guessed from the number of elements")
    return tuple(notes)
