"""One network in one setting, all the way: number formats, placement, amounts, rates, timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from openhtp.compiler.sizes import KernelSize, usual_formats
from openhtp.compiler.vtcm.place import DEFAULT_LEVEL, placements
from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.core.precision import NumberFormat
from openhtp.cost.amounts import Amounts, Speeds
from openhtp.cost.rates import FoundRates, Parameters, find_rates
from openhtp.cost.timeline import Busy, KernelTimeline, run
from openhtp.hw.clocks import Clocks
from openhtp.hw.soc import SocSpec
from openhtp.program.htp_program import HtpProgram
from openhtp.program.placement import Move, Placed

COMPRESSED = 0.8
"""The part of the bytes that remains after compression (DLBC); estimated, as no public source states it."""
CACHED = 0.6
"""The part of the bytes of activations that still goes to DDR where there is the system's cache; estimated."""
NEXT_CORE = 0.85
"""The speed that each core after the first adds to one execution; estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The effect of a graph's options on its time. By default the graph has all of one core.

    ``moved`` and ``fetched`` are the parts that remain of the bytes of activations and weights that go over the
    bus, and of the times that these take.
    """

    hvx_threads: int | None = None
    vtcm_bytes: int | None = None
    level: int = DEFAULT_LEVEL
    cores: int = 1
    moved: float = 1.0
    fetched: float = 1.0

    def over_the_bus(self, move: Move, nbytes: int) -> int:
        """How many of the bytes of a transfer go from or to DDR."""
        return round(nbytes * (self.fetched if move is Move.WEIGHTS else self.moved))

    @classmethod
    def of(cls, program: HtpProgram) -> Tuning:
        """The effect of a program's options."""
        options = program.options
        fetched = packed_share(program) if options.weights_packing else 1.0
        return cls(
            hvx_threads=options.hvx_threads,
            vtcm_bytes=options.vtcm_bytes or None,
            level=options.optimization_level,
            cores=options.num_cores,
            moved=(COMPRESSED if options.dlbc else 1.0) * (CACHED if options.slc_alloc_enable else 1.0),
            fetched=fetched * (COMPRESSED if options.dlbc_weights else 1.0),
        )


ONE_CORE = Tuning()
"""All of one core, and nothing chosen."""


def packed_share(program: HtpProgram) -> float:
    """The part of the bytes of weights that is left if those that need 4 bits are stored in them."""
    whole = left = 0
    for name, data in program.statics.items():
        size = data.nbytes
        small = program.tensors[name].dtype.is_fixed_point and data.dtype.itemsize == 1 and data.size > 0
        fits = small and int(data.max()) - int(data.min()) < _FOUR_BITS
        whole, left = whole + size, left + (size // 2 if fits else size)
    return left / whole if whole else 1.0


_FOUR_BITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedRun:
    """Where everything lies and when it happens. ``busy`` and ``line`` have one row."""

    kernels: tuple[KernelSize, ...]
    formats: tuple[NumberFormat, ...]
    found: FoundRates
    placed: Placed
    busy: Busy
    line: KernelTimeline
    tuning: Tuning

    @classmethod
    def of(
        cls,
        kernels: Sequence[KernelSize],
        soc: SocSpec,
        precision: NumberFormat | None,
        parameters: Parameters,
        clocks: Clocks,
        tuning: Tuning,
        known: Placed | None = None,
    ) -> PricedRun:
        """Place the kernels, price them and put them on the timeline; of several placements, the fastest.

        ``known`` is a placement that was made before.
        """
        nearest = find_rates(soc, parameters)
        formats = precisions_of(kernels, precision)
        verify_offered(soc, formats)
        if tuning.cores > soc.cores:
            raise InvalidArgument(f"num_cores is {tuning.cores}; {soc.name} has {soc.cores}")
        vtcm_bytes = min(soc.vtcm_bytes, tuning.vtcm_bytes or soc.vtcm_bytes)
        runs = []
        ways = placements(kernels, formats, vtcm_bytes, tuning.level) if known is None else [known]
        for placed in ways:
            amounts = Amounts.of(kernels, formats, placed, parameters)
            busy = amounts.busy([nearest.rates], [_speeds(soc, clocks, tuning)])
            busy = replace(busy, dma=busy.dma * tuning.moved, weights=busy.weights * tuning.fetched)
            line = run(busy, amounts.tiles, amounts.free_after)
            runs.append((placed, busy, line))
        placed, busy, line = min(runs, key=lambda each: float(each[2].total[0]))
        return cls(
            kernels=tuple(kernels),
            formats=tuple(formats),
            found=nearest,
            placed=placed,
            busy=busy,
            line=line,
            tuning=tuning,
        )

    def ddr_bytes(self, *moves: Move) -> int:
        """Bytes that go from or to DDR for these reasons."""
        return sum(self.tuning.over_the_bus(move, self.placed.moved(move)) for move in moves)


def _speeds(soc: SocSpec, clocks: Clocks, tuning: Tuning) -> Speeds:
    """How fast the units are with these clocks, and with the tuning's cores and HVX threads."""
    threads = 1.0 if tuning.hvx_threads is None else min(1.0, tuning.hvx_threads / soc.hvx)
    cores = 1.0 + NEXT_CORE * (tuning.cores - 1)
    return Speeds(
        hmx=clocks.hmx * cores, hvx=clocks.core * threads * cores, ddr=clocks.bus, core=clocks.core * cores
    )


def precisions_of(kernels: Sequence[KernelSize], asked: NumberFormat | None) -> list[NumberFormat]:
    """The precision of every kernel; kernels of integers count as the rest does."""
    fixed = {k.precision for k in kernels if k.precision not in (None, NumberFormat.FLOAT)}
    if asked is not None and fixed and fixed != {asked}:
        words = " and ".join(sorted(each.value for each in fixed if each))
        raise InvalidArgument(f"the model is quantized already, to {words}; leave the precision out")
    if asked is not None and not fixed:
        return [NumberFormat.FLOAT if kernel.stays_float else asked for kernel in kernels]
    return usual_formats(kernels)


def verify_offered(soc: SocSpec, precisions: Sequence[NumberFormat]) -> None:
    """Refuse half precision where the SoC has none."""
    if NumberFormat.FLOAT in precisions and not soc.fp16:
        raise UnsupportedFeature(f"{soc.name} has no half precision; quantize the model, or say w8a8 or w8a16")
