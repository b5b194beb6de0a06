"""What a point is worth: the same as the commands say of it."""

from __future__ import annotations

import onnx
import pytest

import openhtp
from openhtp.planning import plan
from openhtp.sweeping import BadStudy, load_study
from openhtp.sweeping.measures import find_measure
from openhtp.sweeping.study import StudyFiles, read_all
from openhtp.sweeping.worker import measure
from openhtp.zoo import tiny_mlp
from tests.sweeping.studies import SCENARIO, plans


def rows_of(study, shipped=None):
    from openhtp.sweeping.study import grid

    loaded = load_study(study)
    return measure(loaded, list(grid(loaded)), shipped)[0]


def test_plans_are_what_plan_says(tmp_path):
    study = plans(tmp_path)
    study["axes"] = {"scenario": study["axes"]["scenario"], "policy": ["strict", "fair"]}
    for row in rows_of(study):
        text = SCENARIO + f"policy: {row.point.values['policy']}\n"
        (tmp_path / "one.yaml").write_text(text)
        alone = plan(tmp_path / "one.yaml")
        assert row.measured["cam.p99_us"] == alone["cam"].p99 * 1000
        assert row.measured["llm.requests"] == alone["llm"].runs
        assert row.measured["missed"] == alone.missed
        worst = max(alone["cam"].max / 12, alone["llm"].max / 100)
        assert row.measured["margin"] == pytest.approx(1 - worst, abs=1e-6)


def test_every_part_of_a_scenario_can_be_varied(tmp_path):
    study = plans(tmp_path)
    study["axes"] |= {
        "soc": "SM8550",
        "seed": 4,
        "policy": "edf",
        "duration": 200,
        "device.eviction": 1,
        "clients.cam.deadline": 6,
        "clients.llm.run": [10, 30],
        "events.0.every": 20,
    }
    short, long = rows_of(study)
    assert short.measured["cam.requests"] == 10
    assert long.measured["llm.max_us"] > short.measured["llm.max_us"] >= 10_000


def test_arrivals_counted_together(tmp_path):
    study = plans(tmp_path)
    one = {name: study["axes"][name] for name in ("scenario",)}
    alone = [row.measured for row in rows_of(study | {"axes": one | {"seed": {"from": 0, "to": 3}}})]
    (together,) = rows_of(study | {"axes": one | {"seeds": 4}})
    assert together.measured["llm.requests"] == sum(each["llm.requests"] for each in alone)
    assert together.measured["margin"] == min(each["margin"] for each in alone)


def test_a_client_that_is_not_there_is_told(tmp_path):
    study = plans(tmp_path)
    study["axes"]["clients.can.depth"] = [1]
    with pytest.raises(BadStudy, match="of a client 'can'; the scenario has cam, llm"):
        load_study(study)


def test_a_scenario_with_models_and_files_that_were_shipped(tmp_path):
    folder = tmp_path / "away"
    (folder / "nets").mkdir(parents=True)
    (folder / "nets" / "net.onnx").write_bytes(tiny_mlp())
    text = SCENARIO.replace("run: 5", "model: nets/net.onnx, precision: w8a8")
    (folder / "scenario.yaml").write_text(text)
    (folder / "study.yaml").write_text(
        "measure: plan\naxes:\n  scenario: scenario.yaml\n  soc: [SM8550, SM8650]\n"
    )
    study = load_study(folder / "study.yaml")
    assert set(study.files) == {"scenario.yaml", "nets/net.onnx"}
    here = rows_of(study)
    shipped = read_all(study)
    (folder / "scenario.yaml").unlink()
    (folder / "nets" / "net.onnx").unlink()
    found = find_measure("plan").make(study, StudyFiles(study, shipped)).run([row.point.values for row in here])
    assert found == [row.measured for row in here]


def test_open_dimensions_are_an_axis(tmp_path):
    path = tmp_path / "open.onnx"
    model = onnx.load_from_string(tiny_mlp())
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    del model.graph.value_info[:]
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    path.write_bytes(model.SerializeToString())
    study = {"measure": "estimate", "axes": {"model": str(path), "soc": "SM8650", "dims.batch": [1, 64]}}
    one, many = rows_of(study)
    assert many.measured["latency_us"] > one.measured["latency_us"]
    assert one.measured["latency_us"] == pytest.approx(
        openhtp.estimate(path, "SM8650", dims={"batch": 1}).total_us, abs=1e-5
    )


def test_a_model_that_cannot_be_used_fails_for_all_of_its_points(tmp_path):
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"no model")
    study = {"measure": "estimate", "axes": {"model": ["zoo:tiny_mlp", str(path)], "soc": ["SM8550", "SM8650"]}}
    rows = rows_of(study)
    assert [row.error is None for row in rows] == [True, True, False, False]
    assert rows[2].error.startswith("BadModel: ")


def test_accuracy_of_precisions_and_layers():
    layer = next(node.name for node in onnx.load_from_string(tiny_mlp()).graph.node)
    study = {
        "measure": "accuracy",
        "axes": {
            "model": "zoo:tiny_mlp",
            "precision": ["w8a8", "w8a16", "float"],
            f"layers.{layer}": [None, "u16"],
            "samples": 2,
        },
    }
    rows = rows_of(study)
    narrow, mixed, wide = rows[0].measured, rows[1].measured, rows[2].measured
    assert narrow["sqnr_db"] > 20
    assert len({each["sqnr_db"] for each in (narrow, mixed, wide)}) == 3
    assert narrow["latency_us"] > 0
    assert "is not quantized; expected w8a8 or w8a16" in rows[4].error


def test_live_runs_beside_their_plan(tmp_path):
    text = (
        "device: {hvx: 1, hmx: 1, vtcm_mb: 1, eviction: 10}\n"
        "clients: [{name: A, priority: low}, {name: B, priority: high, deadline: 100}]\n"
        "events: [{at: 0, client: A, run: 50}, {at: 20, client: B, run: 30}]\n"
    )
    (tmp_path / "s.yaml").write_text(text)
    (row,) = rows_of({"measure": "live", "axes": {"scenario": str(tmp_path / "s.yaml"), "stretch": 2000}})
    assert row.error is None
    assert row.measured["A.requests"] == row.measured["B.requests"] == 1
    assert row.measured["stretch"] == 2000
    assert row.measured["A.max_us"] >= 50


def test_perf_profiles_are_priced_as_estimate_does():
    names = ["burst", "balanced", "power_saver"]
    axes = {"model": "zoo:small_cnn", "soc": "SM8650", "perf_profile": names}
    for row in rows_of({"name": "p", "measure": "estimate", "axes": axes}):
        alone = openhtp.estimate("zoo:small_cnn", soc="SM8650", perf_profile=row.point.values["perf_profile"])
        assert row.measured["latency_us"] == pytest.approx(alone.total_us, abs=1e-6)
        assert row.measured["energy_class"] == alone.energy_class
    (bad,) = rows_of({"name": "p", "measure": "estimate", "axes": axes | {"perf_profile": ["fast"]}})
    assert "perf profile 'fast' is unknown" in str(bad.error)
