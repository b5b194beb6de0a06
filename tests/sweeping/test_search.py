"""Random and optimized searches are the same every time, in one go or in several."""

from __future__ import annotations

import sys

import pytest

import openhtp
from openhtp.sweeping import load_results
from tests.sweeping.studies import estimates
from tests.sweeping.test_run import Here


def study(method, samples, **changes):
    axes = estimates()["axes"] | {"ddr_gbs": {"from": 2.0, "to": 40.0}}
    return estimates(axes=axes, search={"method": method, "samples": samples, "seed": 3, "batch": 10}) | changes


def test_random_points_are_different_ones_of_the_space():
    first = openhtp.sweep(study("random", 50), on=Here())
    assert first.points == openhtp.sweep(study("random", 50), on=Here()).points
    assert len({row.point.key for row in first.rows}) == 50
    assert all(2 <= row.point.values["ddr_gbs"] <= 40 for row in first.rows)


def test_a_small_space_is_drawn_from_until_it_is_empty():
    small = estimates(search={"method": "random", "samples": 100}, constraints=["vtcm_mb != 2"])
    result = openhtp.sweep(small, on=Here())
    assert len(result.rows) == 18
    assert [row.point.values for row in result.rows] != sorted(
        (row.point.values for row in result.rows), key=lambda values: (values["soc"], values["vtcm_mb"])
    )


def test_optuna_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(openhtp.UnsupportedFeature, match=r"pip install 'openhtp\[sweep\]'"):
        openhtp.sweep(study("optuna", 5), on=Here())


def test_the_optimizer_goes_by_results_and_constraints():
    pytest.importorskip("optuna")
    wanted = study("optuna", 60, constraints=["energy_class <= 3"], objectives={"latency_us": "min"})
    result = openhtp.sweep(wanted, on=Here())
    late = [row.point.values["ddr_gbs"] for row in result.rows[-20:]]
    assert sum(late) / len(late) > 25  # the middle of the axis is 21, and more is faster
    random = openhtp.sweep(study("random", 60), on=Here())
    assert result.best(result.study.objectives[0], 1)[0].measured["latency_us"] <= min(
        row.measured["latency_us"] for row in random.measured
    )


def test_an_optimization_that_was_broken_off_goes_on_as_if_it_had_not_been(tmp_path):
    pytest.importorskip("optuna")

    def broken(task, answer):
        if len(here.tasks) > 3:
            raise KeyboardInterrupt
        return answer

    whole = openhtp.sweep(study("optuna", 50), on=Here())
    here = Here(broken)
    with pytest.raises(KeyboardInterrupt):
        openhtp.sweep(study("optuna", 50), store=tmp_path, on=here)
    before = {row.point.number for row in load_results(tmp_path).rows}
    assert 0 < len(before) < 50
    again = Here()
    assert openhtp.sweep(study("optuna", 50), store=tmp_path, on=again).points == whole.points
    assert not before & {point.number for task in again.tasks for point in task.points}
    assert max(len(task.points) for task in again.tasks) <= 5, "a batch of ten is shared by two workers"
