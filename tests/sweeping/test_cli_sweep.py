"""``openhtp sweep`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from openhtp.cli.main import app
from tests.sweeping.studies import estimates

EXAMPLES = Path(__file__).parents[2] / "examples" / "sweeps"


def invoke(*args):
    return CliRunner().invoke(app, ["sweep", *map(str, args)])


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(estimates(name="small", constraints=["latency_us < 1000"])))
    return path


def test_run_then_show(study, tmp_path):
    store, first, second = tmp_path / "store", tmp_path / "a.json", tmp_path / "b.json"
    done = invoke(study, "--store", store, "--json", first, "--workers", 1)
    assert done.exit_code == 0, done.output
    for words in ("27 points (estimate, modelled)", "smallest latency_us", "Pareto front", "which axis matters"):
        assert words in done.output
    assert [point["number"] for point in json.loads(first.read_text())["points"]] == list(range(27))
    again = invoke("run", study, "--store", store, "--json", second)
    assert again.exit_code == 0, again.output
    assert first.read_text() == second.read_text()
    page = tmp_path / "p.html"
    shown = invoke("show", store, "--best", 2, "--html", page, "--json", second)
    assert shown.exit_code == 0, shown.output
    assert first.read_text() == second.read_text()
    assert "27 points" in shown.output
    assert "openhtp sweep" in page.read_text()


def test_failures_are_printed(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(estimates(axes=estimates()["axes"] | {"vtcm_mb": [1, 16]})))
    done = invoke(path, "--store", tmp_path / "store", "--workers", 1)
    assert done.exit_code == 0, done.output
    assert "9 failed" in done.output
    assert "failed 3 times: InvalidArgument: vtcm_mb is 16; SM8650 has 8" in done.output


def test_bad_calls(study, tmp_path):
    for args, words in (
        ((tmp_path / "none.yaml",), "expected a file with a study"),
        (("show", tmp_path), "is no store of a sweep"),
        ((study, "--on", "mars", "--store", tmp_path / "x"), "expected local, ray or ray://host:port"),
    ):
        result = invoke(*args)
        assert result.exit_code == 2
        assert words in result.output
    assert invoke(study, "--store", tmp_path / "s", "--workers", 1).exit_code == 0
    study.write_text(yaml.safe_dump(estimates(axes=estimates()["axes"] | {"vtcm_mb": [8]})))
    result = invoke(study, "--store", tmp_path / "s")
    assert result.exit_code == 2
    assert "holds another study" in result.output


def test_the_example_estimates_run(tmp_path):
    done = invoke(EXAMPLES / "which-soc.yaml", "--store", tmp_path / "s")
    assert done.exit_code == 0, done.output
    assert "4,032 points" in done.output


def test_the_example_plans_run(tmp_path):
    pytest.importorskip("optuna")
    text = (EXAMPLES / "deadlines.yaml").read_text().replace("samples: 480", "samples: 48")
    (tmp_path / "deadlines.yaml").write_text(text)
    (tmp_path / "cabin.yaml").write_text((EXAMPLES / "cabin.yaml").read_text())
    done = invoke(tmp_path / "deadlines.yaml", "--store", tmp_path / "s")
    assert done.exit_code == 0, done.output
    assert "48 points" in done.output
