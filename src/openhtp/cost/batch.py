"""One network in many settings at once: the model of ``model.py`` on arrays of settings by kernels.

Every time is an amount of the kernel over a rate of the setting. So the amounts are worked out once per precision
and size of VTCM, with all rates at one, and numpy divides. Results do not depend on which settings are priced
together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openhtp.compiler.sizes import KernelSize, most_common
from openhtp.compiler.vtcm.place import place
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.precision import NumberFormat
from openhtp.core.units import MIB
from openhtp.cost.amounts import MEGA, Amounts, Speeds
from openhtp.cost.energy import energy_class_of, energy_pj, on_chip_pj, wide_bytes
from openhtp.cost.model import band_of
from openhtp.cost.rates import FoundRates, Parameters, find_rates, fitted_parameters, prices
from openhtp.cost.running import precisions_of, verify_offered
from openhtp.cost.timeline import run
from openhtp.hw.clocks import FULL, Clocks
from openhtp.hw.soc import SocSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and how a network runs. By default it has the whole VTCM, all HVX threads, and the DDR for itself.

    ``hvx_threads`` and ``vtcm_mb`` are what the graph's options of these names give it; ``ddr_gbs`` is the part of
    the bandwidth that others leave. ``clocks`` are those of the votes in force.
    """

    soc: SocSpec
    precision: NumberFormat | None = None
    vtcm_mb: int | None = None
    hvx_threads: int | None = None
    ddr_gbs: float | None = None
    clocks: Clocks = FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Modelled time of one invocation, as in ``Estimate``; ``energy_class`` is one higher for twice the energy."""

    total_us: float
    low_us: float
    high_us: float
    energy_class: int
    extrapolated: bool


def price_many(kernels: Sequence[KernelSize], settings: Sequence[Setting]) -> list[Priced | QnnError]:
    """Price each setting; where ``estimate`` would raise, its error stands in the setting's place."""
    parameters = fitted_parameters()
    results: list[Priced | QnnError | None] = [None] * len(settings)
    groups: dict[tuple[NumberFormat | None, int], list[_Member]] = {}
    # Settings are many, chips and precisions few. A chip is known by identity: hashing all it has costs more.
    known: dict[tuple[int, NumberFormat | None], FoundRates | QnnError] = {}
    for number, setting in enumerate(settings):
        key = (id(setting.soc), setting.precision)
        rates = known.get(key)
        if rates is None:
            rates = known[key] = _rates(kernels, setting.soc, setting.precision, parameters)
        if isinstance(rates, QnnError):
            results[number] = rates
            continue
        try:
            _verify(setting)
        except QnnError as error:
            results[number] = error
        else:
            group = (setting.precision, (setting.vtcm_mb or setting.soc.vtcm_mb) * MIB)
            groups.setdefault(group, []).append((number, setting, rates))
    for (asked, vtcm_bytes), members in groups.items():
        formats = precisions_of(kernels, asked)
        amounts = Amounts.of(kernels, formats, place(kernels, formats, vtcm_bytes), parameters)
        on_chip = on_chip_pj(kernels, formats)
        from_ddr = amounts.moved_mb * MEGA + wide_bytes(kernels, formats)
        cores = {setting.clocks.core for _, setting, _ in members}
        classes = {core: energy_class_of(energy_pj(on_chip, from_ddr, core)) for core in cores}
        for (number, *_), priced in zip(members, _price(amounts, classes, members, parameters), strict=True):
            results[number] = priced
    return [each for each in results if each is not None]


_Member = tuple[int, Setting, FoundRates]
"""A place among the settings, the setting, and the rates of its SoC."""


def _rates(
    kernels: Sequence[KernelSize], soc: SocSpec, asked: NumberFormat | None, parameters: Parameters
) -> FoundRates | QnnError:
    """The rates of a SoC, or why it does not compute these kernels."""
    try:
        formats = precisions_of(kernels, asked)
        verify_offered(soc, formats)
        rates = find_rates(soc, parameters)
        for precision in set(formats):
            prices(rates.rates, precision, parameters)  # refuses what the SoC does not compute in
    except QnnError as error:
        return error
    return rates


def _verify(setting: Setting) -> None:
    """Refuse more than the SoC has."""
    soc = setting.soc
    if setting.vtcm_mb is not None and not 1 <= setting.vtcm_mb <= soc.vtcm_mb:
        raise InvalidArgument(f"vtcm_mb is {setting.vtcm_mb}; {soc.name} has {soc.vtcm_mb}")
    if setting.hvx_threads is not None and not 1 <= setting.hvx_threads <= soc.hvx:
        raise InvalidArgument(f"hvx_threads is {setting.hvx_threads}; {soc.name} has {soc.hvx}")
    if setting.ddr_gbs is not None and not setting.ddr_gbs > 0:
        raise InvalidArgument(f"ddr_gbs is {setting.ddr_gbs}; expected a bandwidth above 0")


def _price(
    amounts: Amounts, classes: Mapping[float, int], members: Sequence[_Member], parameters: Parameters
) -> list[Priced]:
    rates = [known.rates for _, _, known in members]
    busy = amounts.busy(rates, [_speeds(setting, known) for _, setting, known in members])
    line = run(busy, amounts.tiles, amounts.free_after)
    totals = line.total + np.array([each.launch_us for each in rates])
    main = most_common([amounts.formats[index] for index in amounts.which])
    priced = []
    for (_, setting, known), total in zip(members, totals.tolist(), strict=True):
        extrapolated = known.taken_from is not None
        band = band_of(parameters, main, extrapolated=extrapolated)
        priced.append(
            Priced(
                total_us=total,
                low_us=total * band.low,
                high_us=total * band.high,
                energy_class=classes[setting.clocks.core],
                extrapolated=extrapolated,
            )
        )
    return priced


def _speeds(setting: Setting, known: FoundRates) -> Speeds:
    threads = 1.0 if setting.hvx_threads is None else setting.hvx_threads / setting.soc.hvx
    clocks, share = setting.clocks, 1.0 if setting.ddr_gbs is None else setting.ddr_gbs / known.rates.ddr_gbs
    # The bandwidth that others leave does not grow with the bus, nor the bus with that bandwidth.
    return Speeds(hmx=clocks.hmx, hvx=clocks.core * threads, ddr=min(clocks.bus, share), core=clocks.core)
