"""How well the model does on published times: in families that its fits had not seen, and with all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import numpy as np

from openhtp.core.precision import NumberFormat
from openhtp.cost.model import Accuracy, AccuracyReport, band_of, estimate_kernels, kind_shares
from openhtp.cost.rates import fitted_parameters
from openhtp.hw.catalog import find_soc
from published import SOURCE, Latency, held_out_times, published_kernels, published_latencies

LEAST_SHARE = 0.001
"""Kinds that take less of a family's time than this are left out of its profile."""
REPORT = Path(__file__).parents[2] / "src/openhtp/cost/accuracy.json"


def report() -> AccuracyReport:
    """All that ``openhtp calibrate`` shows."""
    rows = published_latencies()
    return AccuracyReport(
        source=SOURCE,
        times=len(rows),
        networks=len({row.network for row in rows}),
        rank_correlation=rank_correlation(),
        groups=accuracy(),
        profiles=profiles(),
    )


def profiles() -> dict[str, dict[str, float]]:
    """The shares of time by kind of op, the mean over each family's networks, in half precision."""
    soc, kernels = find_soc("SM8650"), published_kernels()
    families: dict[str, set[str]] = {}
    for row in published_latencies():
        families.setdefault(row.family, set()).add(row.network)
    means = {}
    for family, networks in sorted(families.items()):
        mean: dict[str, float] = {}
        for network in sorted(networks):
            ops = estimate_kernels(kernels[network], soc, NumberFormat.FLOAT).ops
            for kind, share in kind_shares(ops).items():
                mean[kind] = mean.get(kind, 0.0) + share / len(networks)
        means[family] = {kind: round(share, 4) for kind, share in mean.items() if share >= LEAST_SHARE}
    return means


def write_report() -> None:
    """Put the report where the package finds it, a group a line."""
    text = msgspec.json.encode(report()).decode()
    REPORT.write_text(text.replace('{"name', '\n{"name') + "\n", encoding="utf-8")


def accuracy() -> dict[str, list[Accuracy]]:
    """Rows by SoC and precision, by SoC, by precision, by family, and one for all; all held out."""
    rows = list(zip(published_latencies(), held_out_times(), strict=True))
    return {
        "all": _grouped(rows, lambda row: "families kept out of the fit"),
        "SoC and precision": _grouped(rows, lambda row: f"{row.soc} {row.precision}"),
        "SoC": _grouped(rows, lambda row: row.soc),
        "precision": _grouped(rows, lambda row: row.precision),
        "family": _grouped(rows, lambda row: row.family),
    }


def rank_correlation() -> dict[str, float]:
    """Spearman's, of modelled and measured times of each SoC."""
    times: dict[str, list[tuple[float, float]]] = {}
    for row, modelled in zip(published_latencies(), held_out_times(), strict=True):
        times.setdefault(row.soc, []).append((row.us, modelled))
    return {soc: _spearman(np.array(pairs)) for soc, pairs in sorted(times.items())}


def _spearman(pairs: np.ndarray) -> float:
    ranks = pairs.argsort(axis=0).argsort(axis=0)
    return float(np.corrcoef(ranks[:, 0], ranks[:, 1])[0, 1])


def _grouped(rows: Iterable[tuple[Latency, float]], key: Callable[[Latency], str]) -> list[Accuracy]:
    groups: dict[str, list[tuple[Latency, float]]] = {}
    for row, modelled in rows:
        groups.setdefault(key(row), []).append((row, modelled))
    return [_accuracy(name, groups[name]) for name in sorted(groups)]


def _accuracy(name: str, rows: list[tuple[Latency, float]]) -> Accuracy:
    errors = np.array([modelled / row.us - 1.0 for row, modelled in rows])
    inside = [_inside(row, modelled) for row, modelled in rows]
    return Accuracy(
        name=name,
        count=len(rows),
        median=float(np.median(np.abs(errors))),
        p90=float(np.quantile(np.abs(errors), 0.9)),
        bias=float(np.median(errors)),
        covered=float(np.mean(inside)),
    )


def _inside(row: Latency, modelled: float) -> bool:
    band = band_of(fitted_parameters(), NumberFormat(row.precision), extrapolated=False)
    return modelled * band.low <= row.us <= modelled * band.high
