from __future__ import annotations

from pathlib import Path

import pytest

from openhtp.cost import NumberFormat
from openhtp.estimation import estimate
from openhtp.planning import BadScenario, load_scenario, parse_scenario, plan
from openhtp.zoo import tiny_mlp

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = """device: {soc: SM8650}
clients:
  - {name: a, model: "zoo:small_cnn", precision: w8a8}
events: [{client: a, at: 0}]
"""


def test_a_model_takes_what_the_cost_model_says():
    scenario = parse_scenario(TEXT)
    estimated = estimate("zoo:small_cnn", "SM8650", precision=NumberFormat.W8A8)
    assert scenario.sources[0].run_ns == round(estimated.total_us * 1000)
    assert scenario.clients[0].steps == estimated.steps
    assert any("zoo:small_cnn (w8a8) takes" in note and "modelled" in note for note in scenario.notes)


def test_another_chip_takes_another_time():
    slow = parse_scenario(TEXT.replace("SM8650", "SM8450")).sources[0].run_ns
    assert slow > parse_scenario(TEXT).sources[0].run_ns


def test_files_lie_beside_the_scenario(tmp_path):
    (tmp_path / "m.onnx").write_bytes(tiny_mlp())
    path = tmp_path / "s.yaml"
    path.write_text(TEXT.replace("zoo:small_cnn", "m.onnx"))
    assert load_scenario(path).sources[0].run_ns > 50_000


def test_an_event_may_bring_its_own_model_and_precision():
    text = TEXT.replace("at: 0", 'at: 0, model: "zoo:tiny_mlp", precision: w8a16')
    expected = estimate("zoo:tiny_mlp", "SM8650", precision="w8a16").total_us
    assert parse_scenario(text).sources[0].run_ns == round(expected * 1000)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("{soc: SM8650}", "{hvx: 4, hmx: 1, vtcm_mb: 8}", r"scenario:3:.*give 'soc' in 'device'"),
        ("zoo:small_cnn", "none.onnx", r"scenario:3:.*model 'none.onnx'"),
        ("zoo:small_cnn", "zoo:smallcnn", r"scenario:3:.*nearest known: small_cnn"),
        ("w8a8", "w4a4", r"scenario:3:"),
        ("SM8650", "QCS6490", None),
        ('model: "zoo:small_cnn", precision', "run: 5, precision", r"scenario:3:.*give one here"),
        ("at: 0", "at: 0, run: 5, precision: float", r"scenario:4:.*not both"),
    ],
)
def test_mistakes_are_answered_with_their_place(old, new, words):
    text = TEXT.replace(old, new)
    if words is None:
        parse_scenario(text)
        return
    with pytest.raises(BadScenario, match=words):
        parse_scenario(text)


def test_a_chip_without_half_precision_wants_a_quantized_model():
    text = TEXT.replace("SM8650", "QCS6490").replace(", precision: w8a8", "")
    with pytest.raises(BadScenario, match=r"scenario:3:.*no half precision"):
        parse_scenario(text)


def test_two_models_on_one_npu():
    result = plan(EXAMPLES / "two-models-one-npu.yaml")
    detector, classifier = result["detector"], result["classifier"]
    assert detector.missed == classifier.missed == 0
    assert classifier.yields > 5
    # The urgent network waits for a step and for VTCM to be saved, not for the whole of the long one.
    assert detector.max < classifier.p50


PROFILES = """
device: {{soc: SM8650{device}}}
clients:
  - {{name: a, model: "zoo:tiny_mlp"{first}}}
  - {{name: b, run: 10{second}}}
events:
  - {{client: a, at: 0}}
"""


@pytest.mark.parametrize(
    ("device", "first", "second", "same_as"),
    [
        ("", "", "", "burst"),
        (", perf_profile: balanced", "", "", "balanced"),
        ("", ", perf_profile: power_saver", "", "power_saver"),
        ("", ", perf_profile: power_saver", ", perf_profile: high_performance", "high_performance"),
        (", perf_profile: burst", ", perf_profile: power_saver", "", "burst"),
    ],
)
def test_the_highest_vote_sets_the_clocks(device: str, first: str, second: str, same_as: str) -> None:
    scenario = parse_scenario(PROFILES.format(device=device, first=first, second=second))
    expected = estimate("zoo:tiny_mlp", "SM8650", perf_profile=same_as).total_us
    assert scenario.sources[0].run_ns == round(expected * 1000)
    assert (f" in {same_as}: modelled" in " ".join(scenario.notes)) == (same_as != "burst")


def test_an_unknown_profile_is_told_with_its_place() -> None:
    with pytest.raises(BadScenario, match="perf_profile"):
        parse_scenario(PROFILES.format(device=", perf_profile: fast", first="", second=""))
