"""Durations are written with units wherever one is taken."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from openhtp.cli.main import app
from openhtp.core.units import duration_ns, number_in_words
from openhtp.planning import load_scenario, parse_scenario
from openhtp.planning.reading import BadScenario

SCENARIO = """
unit: ms
duration: {duration}
device: {{soc: SM8550}}
clients: [{{name: camera, deadline: {deadline}, run: {run}}}]
events: [{{client: camera, every: {every}}}]
"""


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("5ms", 5e6),
        ("1/30s", 1e9 / 30),
        (" 1 / 30 s ", 1e9 / 30),
        ("0.5us", 500),
        ("2e3 ns", 2000),
        ("7µs", 7000),
        ("1min", 60e9),
        ("5", 5e6),
        ("", None),
        ("ms", None),
        ("-5ms", None),
        ("1/0s", None),
        ("5 weeks", None),
        ("nan", None),
        ("inf s", None),
    ],
)
def test_a_duration_with_a_unit(text, nanoseconds):
    assert duration_ns(text, 10**6) == (None if nanoseconds is None else pytest.approx(nanoseconds))


def test_a_number_alone_needs_somebody_to_say_the_unit():
    assert duration_ns("5") is None


def test_a_scenario_takes_units_and_means_the_same():
    plain = parse_scenario(SCENARIO.format(duration=2000, deadline=33, run=5, every=20))
    units = parse_scenario(SCENARIO.format(duration="2s", deadline="33ms", run="5000us", every="1/50s"))
    assert plain == units


def test_what_is_no_duration_is_refused_with_an_example():
    with pytest.raises(BadScenario, match="or one with a unit: 5ms, 1/30s, found 'soon'"):
        parse_scenario(SCENARIO.format(duration=2000, deadline=33, run=5, every="soon"))
    with pytest.raises(BadScenario, match="10000h is more than a year"):
        parse_scenario(SCENARIO.format(duration="10000h", deadline=33, run=5, every=20))


def test_windows_and_limits_take_them_as_well(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.format(duration="2s", deadline="33ms", run="5ms", every="1/30s"))
    result = CliRunner().invoke(app, ["plan", str(path), "--window", "0.5s:1s", "--max-p99", "camera=1/100s"])
    assert result.exit_code == 0, result.output


def test_an_open_dimension_is_answered_with_the_key_for_scenarios(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "open",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 16])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    text = SCENARIO.replace("run: {run}", "model: m.onnx").format(duration=100, deadline=33, every=20)
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(BadScenario) as caught:
        load_scenario(path)
    assert "beside 'model', like dims: {batch: 1}" in caught.value.message
    assert "--dim" not in caught.value.message
    path.write_text(text.replace("model: m.onnx", "model: m.onnx, dims: {batch: 1}"))
    load_scenario(path)


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (33.5, "33.5"), (1500.5, "1,500.5"), (20_342.6, "20,343"), (2_002_999.98, "2,003,000")],
)
def test_long_times_are_no_powers_of_ten(value: float, words: str) -> None:
    assert number_in_words(value) == words


def test_a_plan_of_seconds_in_microseconds_has_a_readable_axis(tmp_path: Path) -> None:
    path = tmp_path / "seconds.yaml"
    scenario = (
        "duration: 2s\ndevice: {soc: SM8650}\n"
        "clients: [{name: a, run: 3ms}]\nevents: [{client: a, every: 1/30s}]\n"
    )
    path.write_text(scenario)
    result = CliRunner().invoke(app, ["plan", str(path), "--gantt", "--svg", str(tmp_path / "seconds.svg")])
    assert "2,003,000 us (modelled)" in result.output
    assert "e+" not in (tmp_path / "seconds.svg").read_text()
