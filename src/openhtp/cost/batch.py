"""One network in many settings at once: the model of ``model.py`` on arrays of settings by kernels.

Every time is an amount of the kernel, which the setting does not change, over a rate of the setting. So the
amounts are worked out once per precision, with all rates at one, and numpy divides. Results do not depend on which
settings are priced together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.kinds import MATRIX_KINDS
from openhtp.core.units import MIB
from openhtp.cost.demand import MEGA, RESIDENT_SHARE, demand_of
from openhtp.cost.energy import CLASS_0_PJ, DDR_PJ_PER_BYTE, MAC_PJ
from openhtp.cost.model import NO_TIME, band_of, most_common, precisions_of, verify_offered
from openhtp.cost.number_format import NumberFormat
from openhtp.cost.rates import FoundRates, Parameters, SocRates, find_rates, fitted_parameters, prices
from openhtp.cost.sizes import KernelSize
from openhtp.hw.soc import SocSpec

Column = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and how a network runs. Left out, the whole VTCM, all HVX threads, and the DDR for itself.

    ``hvx_threads`` and ``vtcm_mb`` are what the graph's options of these names give it; ``ddr_gbs`` is the part of
    the bandwidth that others leave.
    """

    soc: SocSpec
    precision: NumberFormat | None = None
    vtcm_mb: int | None = None
    hvx_threads: int | None = None
    ddr_gbs: float | None = None


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
    found: list[Priced | QnnError | None] = [None] * len(settings)
    groups: dict[NumberFormat | None, list[_Member]] = {}
    # Settings are many, chips and precisions few. A chip is known by identity: hashing all it has costs more.
    known: dict[tuple[int, NumberFormat | None], FoundRates | QnnError] = {}
    for number, setting in enumerate(settings):
        key = (id(setting.soc), setting.precision)
        rates = known.get(key)
        if rates is None:
            rates = known[key] = _rates(kernels, setting.soc, setting.precision, parameters)
        if isinstance(rates, QnnError):
            found[number] = rates
            continue
        try:
            _verify(setting)
        except QnnError as error:
            found[number] = error
        else:
            groups.setdefault(setting.precision, []).append((number, setting, rates))
    for asked, members in groups.items():
        amounts = _Amounts.of(kernels, precisions_of(kernels, asked), parameters)
        for (number, *_), priced in zip(members, _price(amounts, members, parameters), strict=True):
            found[number] = priced
    return [each for each in found if each is not None]


_Member = tuple[int, Setting, FoundRates]
"""A place among the settings, the setting, and the rates of its SoC."""


def _rates(
    kernels: Sequence[KernelSize], soc: SocSpec, asked: NumberFormat | None, parameters: Parameters
) -> FoundRates | QnnError:
    """The rates of a SoC, or why it does not compute these kernels."""
    try:
        given = precisions_of(kernels, asked)
        verify_offered(soc, given)
        found = find_rates(soc, parameters)
        for precision in set(given):
            prices(found.rates, precision, parameters)  # refuses what the SoC does not compute in
    except QnnError as error:
        return error
    return found


def _verify(setting: Setting) -> None:
    """Refuse more than the SoC has."""
    soc = setting.soc
    if setting.vtcm_mb is not None and not 1 <= setting.vtcm_mb <= soc.vtcm_mb:
        raise InvalidArgument(f"vtcm_mb is {setting.vtcm_mb}; {soc.name} has {soc.vtcm_mb}")
    if setting.hvx_threads is not None and not 1 <= setting.hvx_threads <= soc.hvx:
        raise InvalidArgument(f"hvx_threads is {setting.hvx_threads}; {soc.name} has {soc.hvx}")
    if setting.ddr_gbs is not None and not setting.ddr_gbs > 0:
        raise InvalidArgument(f"ddr_gbs is {setting.ddr_gbs}; expected a bandwidth above 0")


@dataclass(frozen=True, slots=True)
class _Amounts:
    """Per kernel: microseconds at rates of one, and megabytes touched; one row for all settings of a precision."""

    precisions: list[NumberFormat]
    which: npt.NDArray[np.intp]
    hmx: Column
    hvx: Column
    overhead: Column
    weights: Column
    touched_mb: Column
    spill_us_per_mb: Column
    arithmetic_pj: float
    moved_mb: float

    @classmethod
    def of(cls, kernels: Sequence[KernelSize], given: Sequence[NumberFormat], parameters: Parameters) -> _Amounts:
        distinct = [precision for precision in NumberFormat if precision in given]
        price = {precision: prices(_rates_of_one(parameters), precision, parameters) for precision in distinct}
        rows: dict[str, list[float]] = {
            name: [] for name in ("hmx", "hvx", "overhead", "weights", "touched_mb", "spill_us_per_mb")
        }
        moved = arithmetic = 0.0
        for kernel, precision in zip(kernels, given, strict=True):
            # Without any VTCM all that is touched is spilled.
            amounts = dict(demand_of(kernel, precision, 0, parameters.padding))
            cost = {name: amount * price[precision][name] for name, amount in amounts.items()}
            cost.pop("spill", None)
            rows["touched_mb"].append(amounts.get("spill", 0.0))
            rows["spill_us_per_mb"].append(price[precision]["spill"])
            rows["weights"].append(cost.pop("weights", 0.0))
            rows["overhead"].append(cost.pop("launch", 0.0) + cost.pop("edge", 0.0))
            hmx = sum(time for name, time in cost.items() if name in MATRIX_KINDS)
            rows["hmx"].append(hmx)
            rows["hvx"].append(sum(cost.values()) - hmx)
            moved += amounts.get("weights", 0.0) + amounts.get("edge", 0.0)
            arithmetic += kernel.macs * MAC_PJ[precision]
        which = np.array([distinct.index(precision) for precision in given], dtype=np.intp)
        columns: dict[str, Any] = {name: np.array(row) for name, row in rows.items()}
        return cls(precisions=distinct, which=which, arithmetic_pj=arithmetic, moved_mb=moved, **columns)


def _rates_of_one(parameters: Parameters) -> SocRates:
    words = next(iter(parameters.matrix.values()))
    return SocRates(soc="", launch_us=0.0, tmacs=dict.fromkeys(words, 1.0), vector_speed=1.0, ddr_gbs=1.0)


def _price(amounts: _Amounts, members: Sequence[_Member], parameters: Parameters) -> list[Priced]:
    rates = [found.rates for _, _, found in members]
    tmacs = np.array([[each.tmacs[p.value] for p in amounts.precisions] for each in rates])[:, amounts.which]
    threads = np.array([[1.0 if s.hvx_threads is None else s.hvx_threads / s.soc.hvx] for _, s, _ in members])
    vector = np.array([[each.vector_speed] for each in rates]) * threads
    ddr = np.array([[f.rates.ddr_gbs if s.ddr_gbs is None else s.ddr_gbs] for _, s, f in members])
    vtcm_mb = np.array([[(s.soc.vtcm_mb if s.vtcm_mb is None else s.vtcm_mb) * MIB / MEGA] for _, s, _ in members])
    spilled_mb = np.maximum(0.0, amounts.touched_mb - RESIDENT_SHARE * vtcm_mb)
    spill = spilled_mb * amounts.spill_us_per_mb / ddr
    busy = np.sqrt((amounts.hmx / tmacs) ** 2 + (amounts.hvx / vector) ** 2 + spill**2)
    own = (busy + amounts.overhead / vector).sum(axis=1) + NO_TIME
    weights = (amounts.weights / ddr).sum(axis=1)
    overlap = parameters.overlap
    whole = (own**overlap + weights**overlap) ** (1 / overlap)
    totals = whole + np.array([each.launch_us for each in rates])
    moved_mb = amounts.moved_mb + spilled_mb.sum(axis=1)
    energy = amounts.arithmetic_pj + moved_mb * MEGA * DDR_PJ_PER_BYTE
    classes = np.ceil(np.log2(np.maximum(1.0, energy / CLASS_0_PJ))).astype(int)
    main = most_common([amounts.precisions[index] for index in amounts.which])
    priced = []
    for (_, _, found), total, energy_class in zip(members, totals.tolist(), classes.tolist(), strict=True):
        extrapolated = found.taken_from is not None
        band = band_of(parameters, main, extrapolated=extrapolated)
        priced.append(
            Priced(
                total_us=total,
                low_us=total * band.low,
                high_us=total * band.high,
                energy_class=energy_class,
                extrapolated=extrapolated,
            )
        )
    return priced
