from __future__ import annotations

import json

import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

import openhtp
from openhtp.cli.main import app
from openhtp.zoo import small_cnn


def invoke(*args):
    return CliRunner().invoke(app, ["estimate", *map(str, args)])


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "small.onnx"
    path.write_bytes(small_cnn())
    return path


def saved(tmp_path, op, shape):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], name="n")], "g", [x], [y])
    path = tmp_path / "one.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_chips_side_by_side(model, tmp_path):
    target = tmp_path / "out.json"
    result = invoke(model, "--soc", "SM8650,SM8845", "--precision", "w8a8", "--top", 3, "--json", target)
    assert result.exit_code == 0, result.output
    for words in ("modelled times", "SM8650", "SM8845 *", "extrapolated from SM8850", "bound by", "Conv2d"):
        assert words in result.output
    document = json.loads(target.read_text())
    assert document["times"] == "modelled"
    first, second = document["estimates"]
    assert (first["soc"], first["extrapolated"]) == ("SM8650", False)
    assert (second["soc"], second["taken_from"]) == ("SM8845", "SM8850")
    assert first["low_us"] < first["total_us"] < first["high_us"]
    assert first["total_us"] == pytest.approx(first["launch_us"] + sum(op["us"] for op in first["ops"]), abs=0.1)
    assert first["total_us"] == pytest.approx(
        openhtp.estimate(model, soc="SM8650", precision="w8a8").total_us, abs=0.01
    )


def test_only_json(model):
    result = invoke(model, "--soc", "SM8650", "--json", "-")
    assert json.loads(result.stdout)["estimates"][0]["precision"] == "float"


def test_unknown_chips_networks_and_precisions(model):
    for args, words in (
        ((model, "--soc", ","), "names no chip"),
        ((model, "--soc", "SM8560"), "nearest known: SM8"),
        (("zoo:resnet5", "--soc", "SM8650"), "nearest known: resnet50"),
        ((model, "--soc", "SM8650", "--precision", "int4"), "expected float, w8a8 or w8a16"),
        ((model, "--soc", "QCS6490"), "QCS6490 has no half precision"),
        (("no-such.onnx", "--soc", "SM8650"), "no-such.onnx"),
    ):
        result = invoke(*args)
        assert result.exit_code == 2, result.output
        assert words in result.output.replace("\n", " ")


def test_an_unsupported_op_is_named(tmp_path):
    result = invoke(saved(tmp_path, "Erf", [1, 4]), "--soc", "SM8650")
    assert result.exit_code == 2
    assert "(Erf) is not supported" in result.output


def test_open_dimensions_are_asked_for_and_given(tmp_path):
    path = saved(tmp_path, "Sigmoid", ["batch", 4])
    asked = invoke(path, "--soc", "SM8650")
    assert asked.exit_code == 2
    assert "--dim batch=1" in asked.output
    assert invoke(path, "--soc", "SM8650", "--dim", "batch=2").exit_code == 0
    assert "NAME=SIZE" in invoke(path, "--soc", "SM8650", "--dim", "batch").output


def test_a_perf_profile_changes_the_time(model, tmp_path):
    config = tmp_path / "htp.json"
    config.write_text('{"devices": [{"soc_model": 57, "cores": [{"perf_profile": "low_balanced"}]}]}')
    times = {}
    for name, arguments in (
        ("burst", ("--soc", "SM8650")),
        ("power_saver", ("--soc", "SM8650", "--perf-profile", "power_saver")),
        ("low_balanced", ("--config_file", config)),
        ("balanced", ("--config_file", config, "--perf_profile", "balanced")),
    ):
        result = invoke(model, *arguments, "--json", tmp_path / "out.json")
        assert result.exit_code == 0, result.output
        document = json.loads((tmp_path / "out.json").read_text())
        assert document["perf_profile"] == name
        assert document["estimates"][0]["soc"] == "SM8650"
        times[name] = document["estimates"][0]["total_us"]
    assert times["burst"] < times["balanced"] < times["low_balanced"] < times["power_saver"]
    assert times["burst"] == round(openhtp.estimate(str(model), "SM8650", perf_profile="burst").total_us, 3)


def test_bad_profiles_and_configs_are_told(model, tmp_path):
    config = tmp_path / "htp.json"
    config.write_text('{"device": []}')
    for arguments, words in (
        (("--soc", "SM8650", "--perf-profile", "brust"), "did you mean burst"),
        (("--config_file", config), "/device is not known; did you mean devices"),
        (("--config_file", tmp_path / "none.json"), "none.json"),
        ((), "--soc names no chip"),
    ):
        result = invoke(model, *arguments)
        assert result.exit_code != 0
        assert words in " ".join(result.output.split())


def test_precisions_side_by_side_with_their_energies(model, tmp_path):
    target = tmp_path / "out.json"
    result = invoke(model, "--soc", "SM8650", "--precision", "w8a8, w8a16,float", "--json", target)
    assert result.exit_code == 0, result.output
    document = json.loads(target.read_text())["estimates"]
    assert [each["precision"] for each in document] == ["w8a8", "w8a16", "float"]
    ratios = [each["perf_profiles"]["burst"]["energy_ratio"] for each in document]
    assert ratios == sorted(set(ratios))
    assert min(profile["energy_ratio"] for each in document for profile in each["perf_profiles"].values()) == 1.0


def test_batches_and_threads_raise_the_rate(model, tmp_path):
    target = tmp_path / "out.json"
    rates = []
    for options in ((), ("--batch", 5, "--threads", 2)):
        result = invoke(model, "--soc", "SM8550", "--precision", "w8a8", *options, "--json", target)
        assert result.exit_code == 0, result.output
        rates.append(json.loads(target.read_text())["estimates"][0]["inferences_per_second"])
    assert rates[1] > 1.5 * rates[0]
    assert "batches of 5" in result.output


def test_an_energy_that_is_the_same_on_all_chips_is_left_out(model):
    """Equal ratios would say that the chips need as much, which nobody knows."""
    table = invoke(model, "--soc", "SM8550,SM8650,SM8750", "--precision", "w8a8").output
    assert "energy" not in table.split("By perf profile")[0]
    formats = invoke(model, "--soc", "SM8650", "--precision", "float,w8a8").output
    assert "energy" in formats.split("By perf profile")[0]
