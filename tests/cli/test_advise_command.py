"""``openhtp advise`` and ``openhtp calibrate``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openhtp import zoo
from openhtp.advising import advise
from openhtp.cli.main import app
from openhtp.estimation import estimate


def test_advice_has_gains_and_is_told_in_json() -> None:
    result = CliRunner().invoke(app, ["advise", "zoo:mobilenet_v2", "--soc", "SM8650", "--json", "-"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["times"] == "modelled"
    gains = [each["gain_us"] for each in document["findings"]]
    assert gains == sorted(gains, reverse=True)
    assert "precision" in {each["rule"] for each in document["findings"]}


def test_advice_on_an_unknown_chip_is_refused() -> None:
    result = CliRunner().invoke(app, ["advise", "zoo:mobilenet_v2", "--soc", "SM1"])
    assert result.exit_code != 0
    assert "SM1" in result.output


def test_calibration_is_reported() -> None:
    result = CliRunner().invoke(app, ["calibrate", "--report", "--json", "-"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["all"][0]["count"] == 1638
    assert {row["name"] for row in document["SoC and precision"]} >= {"SM8650 w8a8", "SM8750 float"}
    assert min(document["rank_correlation"].values()) > 0.9


def test_an_estimate_is_written_as_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["estimate", "zoo:tiny_mlp", "--soc", "SM8650,SM8550", "--html", str(page)])
    assert result.exit_code == 0, result.output
    assert result.output.count("wrote") == 1
    text = page.read_text()
    assert "modelled" in text
    assert "SM8550" in text
    assert 'src="http' not in text
    assert 'href="http' not in text


def test_an_advised_network_gains_what_was_said() -> None:
    """The advice to quantize, against the quantized network itself (docs/advice.md)."""
    before = estimate("zoo:transformer_blocks", "SM8650").total_us
    (said,) = [each for each in advise("zoo:transformer_blocks", "SM8650") if each.rule == "precision"]
    after = estimate(zoo.quantized(zoo.MODELS["transformer_blocks"](), samples=1), "SM8650").total_us
    assert said.gain_us == pytest.approx(before - after, rel=0.15)
