"""One network in one setting, all the way: formats, placement, amounts, rates, timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openhtp.compiler.sizes import KernelSize
from openhtp.compiler.vtcm.place import place
from openhtp.core.number_format import NumberFormat
from openhtp.cost.amounts import Amounts, Speeds
from openhtp.cost.formats import precisions_of, verify_offered
from openhtp.cost.rates import FoundRates, Parameters, find_rates
from openhtp.cost.timeline import Busy, Line, run
from openhtp.hw.clocks import Clocks
from openhtp.hw.soc import SocSpec
from openhtp.program.placement import Placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where everything lies and when it happens. ``busy`` and ``line`` have one row."""

    kernels: tuple[KernelSize, ...]
    formats: tuple[NumberFormat, ...]
    found: FoundRates
    placed: Placed
    busy: Busy
    line: Line

    @classmethod
    def of(
        cls,
        kernels: Sequence[KernelSize],
        soc: SocSpec,
        precision: NumberFormat | None,
        parameters: Parameters,
        clocks: Clocks,
        *,
        hvx_threads: int | None = None,
        vtcm_bytes: int | None = None,
    ) -> Run:
        """Place the kernels, price them and put them on the timeline."""
        found = find_rates(soc, parameters)
        formats = precisions_of(kernels, precision)
        verify_offered(soc, formats)
        placed = place(kernels, formats, min(soc.vtcm_bytes, vtcm_bytes or soc.vtcm_bytes))
        amounts = Amounts.of(kernels, formats, placed, parameters)
        busy = amounts.busy([found.rates], [speeds_of(soc, clocks, hvx_threads)])
        return cls(
            kernels=tuple(kernels),
            formats=tuple(formats),
            found=found,
            placed=placed,
            busy=busy,
            line=run(busy, amounts.tiles, amounts.free_after),
        )


def speeds_of(soc: SocSpec, clocks: Clocks, hvx_threads: int | None) -> Speeds:
    """How fast the units are with these clocks and so many of the SoC's HVX threads."""
    threads = 1.0 if hvx_threads is None else min(1.0, hvx_threads / soc.hvx)
    return Speeds(hmx=clocks.hmx, hvx=clocks.core * threads, ddr=clocks.bus)
