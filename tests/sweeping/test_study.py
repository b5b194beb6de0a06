"""Studies are checked before anything runs, and each mistake has one clear answer."""

from __future__ import annotations

import json

import pytest

from openhtp.sweeping import BadStudy, load_study
from openhtp.sweeping.study import Axis, grid, grid_size
from tests.sweeping.studies import SOCS, estimates, plans


def axes(**more):
    return estimates()["axes"] | more


def test_a_grid_is_in_one_order_the_last_axis_fastest():
    study = load_study(estimates())
    points = list(grid(study))
    assert [point.number for point in points] == list(range(27)) == list(range(grid_size(study)))
    assert [point.values["vtcm_mb"] for point in points[:4]] == [1, 2, 4, 1]
    assert [point.values["soc"] for point in points[::9]] == SOCS


def test_values_and_ranges():
    study = load_study(
        {
            "measure": "estimate",
            "axes": {
                "model": "zoo:tiny_mlp",
                "soc": "all",
                "vtcm_mb": {"from": 1, "to": 4},
                "ddr_gbs": {"from": 0.1, "to": 0.3, "step": 0.1},
            },
        }
    )
    found = {axis.name: axis.values for axis in study.axes}
    assert found["vtcm_mb"] == (1, 2, 3, 4)
    assert found["ddr_gbs"] == (0.1, 0.2, 0.3)
    assert "SM8650" in found["soc"]
    assert [axis.name for axis in study.varied] == ["soc", "vtcm_mb", "ddr_gbs"]
    random = load_study(
        estimates(axes=axes(ddr_gbs={"from": 5.0, "to": 9.0}), search={"method": "random", "samples": 3})
    )
    assert random.axes[-1] == Axis("ddr_gbs", (), 5.0, 9.0)


def test_constraints_of_axes_shape_the_space():
    study = load_study(estimates(constraints=["vtcm_mb < 4", "soc != SM8450", "latency_us <= 100"]))
    found = list(grid(study))
    assert len(found) == 12
    assert {point.values["soc"] for point in found} == {"SM8550", "SM8650"}
    assert [str(each) for each in study.result_constraints] == ["latency_us <= 100"]


BAD = {
    "axis": (estimates(axes=axes(vtmc_mb=[1])), "no axis 'vtmc_mb'; did you mean 'vtcm_mb'?"),
    "needed": ({"measure": "estimate", "axes": {"model": "zoo:tiny_mlp"}}, "needs 'soc'"),
    "no values": (estimates(axes=axes(vtcm_mb=[])), "the space is empty"),
    "no axes": (estimates(axes={}), "expected axes"),
    "empty": (estimates(constraints=["vtcm_mb > 8"]), "the space is empty: no point holds vtcm_mb > 8"),
    "backwards": (estimates(axes=axes(vtcm_mb={"from": 4, "to": 1})), "from 4 to 1 is empty"),
    "twice": (estimates(axes=axes(vtcm_mb=[1, 1])), "given twice"),
    "soc": (estimates(axes=axes(soc=["SM8651"])), "nearest known: SM8650"),
    "measure": (estimates(measure="estimates"), "did you mean 'estimate'?"),
    "objective": (estimates(objectives={"latency": "min"}), "did you mean 'latency_us'?"),
    "objective that is a word": (estimates(objectives={"soc": "min"}), "does not measure 'soc'"),
    "constraint": (estimates(constraints=["margin >= 1"]), "'margin' is neither measured nor an axis"),
    "no constraint": (estimates(constraints=["quick"]), "expected for example 'margin >= 0.1'"),
    "bound": (estimates(constraints=["soc > fast"]), "compared with == and != only"),
    "open grid": (estimates(axes=axes(ddr_gbs={"from": 1.5, "to": 2.5})), "needs a 'step' for 'ddr_gbs'"),
    "samples": (estimates(search="optuna"), "needs a number of samples"),
    "each": (estimates(each="network"), "'network' is not one of model, soc"),
    "missing file": (estimates(axes=axes(model="no-such.onnx")), "No such file"),
    "too many": (estimates(axes=axes(ddr_gbs={"from": 1, "to": 999_999})), "at most 20,000,000"),
}


@pytest.mark.parametrize(("study", "words"), BAD.values(), ids=BAD)
def test_mistakes(study, words):
    with pytest.raises(BadStudy) as refused:
        load_study(study)
    assert words in refused.value.message
    assert refused.value.message.startswith("study:")


def test_a_file_is_read_with_its_lines(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("measure: estimate\naxes:\n  model: zoo:tiny_mlp\n  soc: [SM8650]\n  colour: [red]\n")
    with pytest.raises(BadStudy, match=r"s\.yaml:5: axes\.colour"):
        load_study(path)


def test_the_fingerprint_is_of_what_decides_the_points(tmp_path):
    same = load_study(estimates())
    assert load_study(json.loads(json.dumps(estimates(name="other")))).fingerprint == same.fingerprint
    assert load_study(estimates(constraints=["latency_us < 5"])).fingerprint == same.fingerprint
    assert load_study(estimates(constraints=["vtcm_mb < 4"])).fingerprint != same.fingerprint
    assert load_study(estimates(axes=axes(vtcm_mb=[1, 2]))).fingerprint != same.fingerprint
    before = load_study(plans(tmp_path))
    assert list(before.files) == [str(tmp_path / "scenario.yaml")]
    study = plans(tmp_path)
    path = tmp_path / "scenario.yaml"
    path.write_text(path.read_text().replace("run: 5", "run: 6"))
    assert load_study(study).fingerprint != before.fingerprint
