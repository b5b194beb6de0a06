"""The rates at which a SoC computes and moves data, from ``parameters.toml``.

A SoC without published times has the rates of the nearest one that has them.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openhtp.core.errors import UnsupportedFeature
from openhtp.core.opcall import HELPER_KINDS, MATRIX_KINDS, VECTOR_KINDS
from openhtp.core.precision import NumberFormat
from openhtp.hw.catalog import catalog
from openhtp.hw.soc import SocSpec


@dataclass(frozen=True, slots=True)
class Padding:
    """The part of a block's empty space that costs time: 0 for none, 1 for all of it."""

    rows: float
    channels: float
    moved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SocRates:
    """One SoC: matrix rates in tera multiply-accumulates a second, vector speed relative to an SM8650.

    ``half_cost`` is what the HVX takes for half precision against the SoCs whose vector unit was made for it.
    """

    soc: str
    launch_us: float
    tmacs: Mapping[str, float]
    vector_speed: float
    ddr_gbs: float
    half_cost: float = 1.0


@dataclass(frozen=True, slots=True)
class Band:
    """Measured over modelled time: tenth and ninetieth percentile where the answer was known but not used."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """All fitted numbers.

    ``matrix`` holds factors to the time of a plain convolution, ``vector`` microseconds for a million elements;
    ``scalar_us`` is the time of a million additions that are made one by one;
    ``op_us`` is the fixed cost of a kernel, the same on every SoC: a thread of no vector unit starts it.
    ``matrix_us`` is that of each pair of computed matrices in a product, ``group_us`` that of each group of a
    convolution. ``streamed`` is how long bytes of weights, which lie one after the other, take against those of
    activations, and ``spilled`` how long bytes that VTCM has no room for take.
    """

    padding: Padding
    spilled: float
    streamed: float
    edge_us: float
    scalar_us: float
    group_us: float
    op_us: Mapping[str, float]
    matrix_us: Mapping[str, float]
    matrix: Mapping[str, Mapping[str, float]]
    vector: Mapping[str, Mapping[str, float]]
    socs: Mapping[str, SocRates]
    bands: Mapping[str, Band]


@dataclass(frozen=True, slots=True)
class FoundRates:
    """Rates for a SoC and, unless they are its own, the SoC they were taken from."""

    rates: SocRates
    taken_from: str | None = None


@functools.cache
def fitted_parameters() -> Parameters:
    """The parameters that come with the package."""
    text = Path(__file__).with_name("parameters.toml").read_text(encoding="utf-8")
    return parameters_from(tomllib.loads(text))


def parameters_from(fields: Mapping[str, Any]) -> Parameters:
    """Parameters from the values of a file."""
    return Parameters(
        padding=Padding(**fields["padding"]),
        spilled=fields["spilled"],
        streamed=fields["streamed"],
        edge_us=fields["edge_us"],
        scalar_us=fields["scalar_us"],
        group_us=fields["group_us"],
        op_us=fields["op_us"],
        matrix_us=fields["matrix_us"],
        matrix=fields["matrix"],
        vector=fields["vector"],
        socs={name: SocRates(soc=name, **row) for name, row in fields["soc"].items()},
        bands={name: Band(*pair) for name, pair in fields["band"].items()},
    )


def find_rates(soc: SocSpec, parameters: Parameters) -> FoundRates:
    """The SoC's own rates, those of the same die under another name, or those of the nearest SoC, adapted."""
    if soc.name in parameters.socs:
        return FoundRates(parameters.socs[soc.name])
    known = {name: spec for name, spec in catalog().items() if name in parameters.socs}
    for name, spec in known.items():
        if spec.soc_model == soc.soc_model or name == soc.same_die:
            return FoundRates(parameters.socs[name])
    able = [spec for spec in known.values() if spec.fp16 or not soc.fp16]
    near = min(able, key=lambda spec: _distance(spec, soc))
    return FoundRates(_adapted(parameters.socs[near.name], near, soc), near.name)


def _distance(known: SocSpec, soc: SocSpec) -> tuple[float, ...]:
    """Compare architecture first, then the class of chip, then its units; the order of the file settles ties."""
    speed = abs(math.log(known.dma_gbs / soc.dma_gbs)) if soc.stream_gbs else 0.0
    return (
        abs(known.arch - soc.arch),
        abs(_class(known) - _class(soc)),
        abs(known.cores - soc.cores),
        abs(math.log(known.vtcm_mb / soc.vtcm_mb)),
        speed,
    )


def _class(soc: SocSpec) -> int:
    """The first digit of a part's number tells its class: 8 is the best of its year, 6 is modest."""
    return next((int(letter) for letter in soc.name if letter.isdigit()), 0)


def _adapted(rates: SocRates, near: SocSpec, soc: SocSpec) -> SocRates:
    """Scale by the known facts of the SoC: threads, bandwidth, shortest invocation."""
    bandwidth = soc.stream_gbs / near.dma_gbs if soc.stream_gbs and near.stream_gbs else 1.0
    return replace(
        rates,
        soc=soc.name,
        vector_speed=rates.vector_speed * soc.hvx / near.hvx,
        ddr_gbs=rates.ddr_gbs * bandwidth,
        launch_us=float(soc.invoke_us) if soc.invoke_us is not None else rates.launch_us,
    )


def prices(rates: SocRates, precision: NumberFormat, parameters: Parameters) -> dict[str, float]:
    """Microseconds for one unit of each amount that ``amounts.py`` names."""
    word = precision.value
    if word not in rates.tmacs:
        raise UnsupportedFeature(f"{rates.soc} does not compute in {word}; quantize the model (w8a8, w8a16)")
    us = {kind: 1e3 / rates.tmacs[word] * parameters.matrix[kind][word] for kind in MATRIX_KINDS}
    half_cost = rates.half_cost if precision is NumberFormat.FLOAT else 1.0
    for kind in (*VECTOR_KINDS, *HELPER_KINDS):
        us[kind] = parameters.vector[kind][word] * half_cost / rates.vector_speed
    us["edge_dma"] = 1e3 / rates.ddr_gbs
    us["weights"] = us["edge_dma"] * parameters.streamed
    us["spill"] = us["edge_dma"] * parameters.spilled
    us["launch"] = parameters.op_us[word]
    us["matrices"] = parameters.matrix_us[word] / rates.vector_speed
    us["groups"] = parameters.group_us / rates.vector_speed
    us["edge"] = parameters.edge_us / rates.vector_speed
    us["scalar"] = parameters.scalar_us / rates.vector_speed
    # A cache has 8 bits whatever the activations have; putting it into tiles is taken for a transpose.
    us["retiled"] = parameters.vector["transpose"][NumberFormat.W8A8.value] / rates.vector_speed
    return us
