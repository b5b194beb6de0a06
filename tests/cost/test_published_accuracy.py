"""What the documentation says about the model's error, against the published latencies themselves."""

from __future__ import annotations

import re
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from cost_fit import Fit
from openhtp.cost import NumberFormat
from openhtp.cost.batch import Setting, price_many
from openhtp.cost.model import accuracy_report, estimate_kernels
from openhtp.hw.catalog import find_soc
from published import Latency, published_kernels, published_latencies
from published.accuracy import report

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/cost-model.md"


@pytest.fixture(scope="module")
def published():
    return published_kernels(), published_latencies()


def told(name):
    """Median error and p90 of a row of the page."""
    match = re.search(
        rf"^\| \**{re.escape(name)}\** \| (\d+) \| ([\d.]+)% \| ([\d.]+)% ", PAGE.read_text(), re.MULTILINE
    )
    assert match, name
    return int(match[1]), float(match[2]) / 100, float(match[3]) / 100


def priced(kernels, rows):
    """Estimates of all rows: network by network, in all settings at once, which gives the same (test_batch.py)."""
    found = {}
    for network in kernels:
        mine = [row for row in rows if row.network == network]
        settings = [Setting(soc=find_soc(row.soc), precision=NumberFormat(row.precision)) for row in mine]
        found.update(zip(mine, price_many(kernels[network], settings), strict=True))
    return [found[row] for row in rows]


def test_the_package_is_as_good_as_the_page_says(published):
    kernels, rows = published
    estimates = priced(kernels, rows)
    errors = np.abs([e.total_us / r.us - 1 for e, r in zip(estimates, rows, strict=True)])
    count, median, p90 = told("all in the fit")
    assert len(rows) == count >= 1638
    assert np.median(errors) == pytest.approx(median, abs=0.002)
    assert np.quantile(errors, 0.9) == pytest.approx(p90, abs=0.005)
    inside = np.mean([e.low_us <= r.us <= e.high_us for e, r in zip(estimates, rows, strict=True)])
    assert inside > 0.8
    assert not any(e.extrapolated for e in estimates)


def test_networks_that_were_not_in_the_fit_are_near_enough():
    _, median, p90 = told("families kept out of the fit")
    assert median <= 0.12
    assert p90 <= 0.33


def test_the_package_has_the_report_of_these_times():
    kept, computed = accuracy_report(), report()
    assert (kept.source, kept.times, kept.networks) == (computed.source, computed.times, computed.networks)
    assert kept.rank_correlation == pytest.approx(computed.rank_correlation)
    assert list(kept.groups) == list(computed.groups)
    for name, rows in computed.groups.items():
        for row, again in zip(kept.groups[name], rows, strict=True):
            assert astuple(row)[0] == astuple(again)[0]
            assert astuple(row)[1:] == pytest.approx(astuple(again)[1:]), "run tools/fit_cost_model.py report"


@pytest.mark.parametrize(
    ("network", "family"), [("yolov8_det", "yolo"), ("swin_tiny", "swin"), ("xlsr", "super_resolution")]
)
def test_an_estimate_names_the_published_family_that_is_most_alike(published, network, family):
    near = estimate_kernels(published[0][network], find_soc("SM8650"), NumberFormat.FLOAT).nearest_family
    assert near.name == family
    assert 0.8 < near.likeness <= 1.0
    assert near.median_error == pytest.approx(told(family)[1], abs=0.001)


@pytest.mark.slow
def test_the_fit_can_be_repeated(published):
    kernels, rows = published
    fit = Fit(kernels, rows)
    errors = np.abs(np.expm1(fit.cross_validate()))
    _, median, p90 = told("families kept out of the fit")
    assert np.median(errors) == pytest.approx(median, abs=0.01)
    assert np.quantile(errors, 0.9) == pytest.approx(p90, abs=0.02)


@pytest.mark.slow
def test_the_fit_finds_parameters_that_are_known(published):
    """Times made by the model itself must give the model back."""
    kernels, rows = published
    made = []
    for row in rows:
        soc = find_soc(row.soc)
        us = estimate_kernels(kernels[row.network], soc, NumberFormat(row.precision)).total_us
        made.append(Latency(row.network, row.precision, row.soc, us))
    fit = Fit(kernels, made)
    times, _ = fit.predict(fit.solve(np.ones(len(made), bool)))
    assert np.median(np.abs(times / fit.measured - 1)) < 0.03
