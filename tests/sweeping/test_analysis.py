"""Fronts and effects, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

import openhtp
from openhtp.sweeping.results import pareto, sensitivity
from openhtp.sweeping.study import Axis, Objective, PointResult, StudyPoint
from tests.sweeping.studies import estimates
from tests.sweeping.test_run import Here


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), max_size=40))
def test_a_front_is_what_nothing_beats(rows):
    losses = np.array(rows, dtype=float).reshape(len(rows), 3)
    expected = [
        n
        for n, one in enumerate(rows)
        if not any(all(a <= b for a, b in zip(o, one, strict=True)) and o != one for o in rows)
    ]
    assert pareto(losses) == expected


def rows(function, a=range(4), b=range(5)):
    points = [StudyPoint(n, {"a": x, "b": y}) for n, (x, y) in enumerate((x, y) for x in a for y in b)]
    return [PointResult(point, {"f": float(function(point.values["a"], point.values["b"]))}) for point in points]


def effects(function, **ranges):
    axes = [Axis("a", tuple(ranges.get("a", range(4)))), Axis("b", tuple(ranges.get("b", range(5))))]
    return {each.axis: each.share for each in sensitivity(rows(function, **ranges), axes, Objective("f"))}


def test_which_axis_matters():
    assert effects(lambda a, b: 3 * a) == {"a": 1.0, "b": 0.0}
    both = effects(lambda a, b: a + b)
    assert both["a"] + both["b"] == pytest.approx(1)
    assert both["b"] > both["a"]
    together = effects(lambda a, b: (a - 1.5) * (b - 2))
    assert max(together.values()) < 1e-9
    assert effects(lambda a, b: 7) == {"a": 0.0, "b": 0.0}


def test_words_and_axes_of_many_values():
    assert effects(lambda a, b: len(str(a)), a=["x", "yy", "zzz"]) == {"a": 1.0, "b": 0.0}
    assert effects(lambda a, b: a, a=range(100))["a"] > 0.99


def test_what_is_given_has_a_front_for_each():
    study = estimates(axes={"model": ["zoo:tiny_mlp", "zoo:small_cnn"], "soc": ["SM8550", "SM8650"]}, each="model")
    result = openhtp.sweep(study, on=Here())
    assert {row.point.values["model"] for row in result.front} == {"zoo:tiny_mlp", "zoo:small_cnn"}
    assert len(result.best(result.study.objectives[0], 1)) == 2


def test_an_axis_can_be_an_objective():
    axes = {"model": "zoo:small_cnn", "soc": "SM8650", "hvx_threads": [1, 2, 4]}
    result = openhtp.sweep(estimates(axes=axes, objectives={"hvx_threads": "min", "latency_us": "min"}), on=Here())
    assert [row.point.values["hvx_threads"] for row in result.front] == [1, 2, 4]
    assert [effect.axis for effect in result.sensitivity()["hvx_threads"]] == []


def test_parquet_has_a_column_for_everything(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    study = estimates(axes=estimates()["axes"] | {"vtcm_mb": [1, 16]})
    result = openhtp.sweep(study, on=Here())
    result.write_parquet(tmp_path / "p.parquet")
    table = parquet.read_table(tmp_path / "p.parquet")
    assert table.num_rows == 18
    assert {"number", "soc", "vtcm_mb", "latency_us", "feasible", "front", "error"} <= set(table.column_names)
    assert table["error"].to_pylist()[1] == "InvalidArgument: vtcm_mb is 16; SM8450 has 8"
    assert table["latency_us"].to_pylist()[0] == result.points[0]["measured"]["latency_us"]
