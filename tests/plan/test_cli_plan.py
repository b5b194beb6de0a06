from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openhtp.cli.main import app

EXAMPLES = Path(__file__).parents[2] / "examples"


def invoke(*args):
    return CliRunner().invoke(app, ["plan", *map(str, args)])


def test_all_outputs_at_once(tmp_path):
    files = {name: tmp_path / name for name in ("o.json", "t.html", "g.svg", "c.json")}
    result = invoke(
        EXAMPLES / "same-pd.yaml",
        "--json", files["o.json"],
        "--timeline", files["t.html"],
        "--svg", files["g.svg"],
        "--trace", files["c.json"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    document = json.loads(files["o.json"].read_text())
    assert list(document) == ["clients", "resources", "summary"]
    assert document["summary"]["times"] == "modelled"
    assert document["summary"]["clients"]["Graph 2"]["yields"] == 1
    assert files["g.svg"].read_text().startswith("<svg")
    assert "Graph 1" in files["t.html"].read_text()
    assert json.loads(files["c.json"].read_text())["traceEvents"]
    for words in ("modelled times in us", "Utilisation (modelled)", "█ running", "Graph 2"):
        assert words in result.output


def test_json_to_standard_output_is_nothing_but_json():
    result = invoke(EXAMPLES / "two-pds.yaml", "--json", "-")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["clients"]["App"][1] == {"state": "paused", "start": 40, "end": 70}


def test_one_command_shows_starvation_and_its_cure(tmp_path):
    path = tmp_path / "o.json"
    result = invoke(EXAMPLES / "starvation.yaml", "--policy", "strict,fair", "--json", path)
    assert result.exit_code == 0, result.output
    assert "strict policy" in result.output
    assert "fair policy" in result.output
    summary = json.loads(path.read_text())["summary"]
    assert summary["clients"]["low"]["max"] > 30_000
    assert summary["compared"]["fair"]["clients"]["low"]["max"] < 1_500


def test_optimize_says_what_to_change(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        "duration: 1000\n"
        "device: {hvx: 1, hmx: 1, vtcm_mb: 1, eviction: 1}\n"
        "clients:\n"
        "  - {name: cam, priority: low, deadline: 10, run: 5}\n"
        "  - {name: llm, priority: high, run: 90}\n"
        "events:\n  - {client: cam, every: 30}\n  - {client: llm, closed: 1}\n"
    )
    assert "[red]" not in invoke(path).output
    result = invoke(path, "--optimize")
    assert result.exit_code == 0, result.output
    assert "All deadlines hold (modelled" in result.output
    path.write_text(path.read_text().replace("deadline: 10", "deadline: 4"))
    result = invoke(path, "--optimize")
    assert result.exit_code == 1
    assert "cam cannot: one run takes 5 us" in result.output


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["none.yaml"], 2, "cannot read"),
        ([EXAMPLES / "same-pd.yaml", "--policy", "lottery"], 2, "expected strict, edf or fair"),
        ([EXAMPLES / "same-pd.yaml", "--window", "5"], 2, "START:END"),
        ([EXAMPLES / "same-pd.yaml", "--window", "9:3"], 2, "below END"),
        ([EXAMPLES / "same-pd.yaml", "--svg", "/nonexistent/x.svg"], 2, "No such file"),
    ],
    ids=["unreadable", "policy", "window", "window order", "unwritable"],
)
def test_bad_calls(args, code, words):
    result = invoke(*args)
    assert result.exit_code == code
    assert words in result.output
