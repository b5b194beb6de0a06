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
    for path in files.values():
        assert f"wrote {path}" in result.output


TWO_CLIENTS = """
unit: ms
duration: 1000
device: {{soc: SM8550}}
clients:
  - {{name: camera, priority: high, deadline: {camera}, run: 20}}
  - {{name: wake word, deadline: 100, run: 1}}
events:
  - {{client: camera, every: 33}}
  - {{client: wake word, every: 50}}
"""


@pytest.mark.parametrize(
    ("camera", "verdict"),
    [
        (33, "all deadlines hold, worst 61 % of its deadline (camera)"),
        (20, "all deadlines hold, worst 100 % of its deadline (camera)"),
        (19, "deadlines missed: camera 31 of 31; worst 106 % of its deadline (camera)"),
    ],
)
def test_a_plan_ends_with_a_verdict(tmp_path, camera, verdict):
    scenario, document, page = (tmp_path / name for name in ("s.yaml", "o.json", "t.html"))
    scenario.write_text(TWO_CLIENTS.format(camera=camera))
    result = invoke(scenario, "--json", document, "--timeline", page)
    assert f"Verdict (modelled): {verdict}" in " ".join(result.output.split())
    assert json.loads(document.read_text())["summary"]["verdict"] == verdict
    assert verdict in page.read_text()


def test_without_deadlines_there_is_none_to_hold():
    assert "Verdict (modelled): no client has a deadline" in invoke(EXAMPLES / "same-pd.yaml").output


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
    document = json.loads(path.read_text())
    assert document["summary"]["clients"]["low"]["max"] > 30_000
    assert document["summary"]["compared"]["fair"]["clients"]["low"]["max"] < 1_500
    assert list(document["policies"]) == ["strict", "fair"]
    for whole in document["policies"].values():
        assert list(whole) == ["clients", "resources", "summary"]
        assert whole["clients"]["low"]
    assert "strict.low" in result.output
    assert "fair.low" in result.output


def test_policies_are_compared_in_one_timeline_picture_and_trace(tmp_path):
    files = {name: tmp_path / name for name in ("t.html", "g.svg", "c.json")}
    words = ["--timeline", files["t.html"], "--picture", files["g.svg"], "--trace", files["c.json"]]
    result = invoke(EXAMPLES / "same-pd.yaml", "--policy", "strict,fair", *words)
    assert result.exit_code == 0, result.output
    for path in files.values():
        text = path.read_text()
        assert "strict" in text
        assert "fair" in text
    events = json.loads(files["c.json"].read_text())["traceEvents"]
    arrows = [event["id"] for event in events if event["ph"] == "s"]
    assert len(set(arrows)) == len(arrows)


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


LATE = """\
# Too much for one.
duration: 1000
device: {hvx: 1, hmx: 1, vtcm_mb: 1, eviction: 1}
clients:
  - name: cam  # must not wait
    deadline: 10
    run: 5
  - {name: llm, priority: high, run: 90}
events:
  - {client: cam, every: 30}
  - {client: llm, closed: 1}
"""


@pytest.fixture
def late(tmp_path):
    path = tmp_path / "late.yaml"
    path.write_text(LATE)
    return path


def test_check_fails_with_missed_deadlines_and_only_then(late):
    assert invoke(late).exit_code == 0
    result = invoke(late, "--check")
    assert result.exit_code == 1
    assert "limit exceeded (modelled): cam (strict policy) misses" in result.output
    assert invoke(EXAMPLES / "pipeline.yaml", "--check").exit_code == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--max-miss-rate", "1"], 0),
        (["--max-miss-rate", "0.5"], 1),
        (["--check", "--max-miss-rate", "1"], 0),
        (["--max-p99", "llm=89"], 1),
        (["--max-p99", "llm=1ms"], 0),
        (["--max-p99", "llm=1ms", "--max-p99", "cam=1"], 1),
        (["--optimize", "--check"], 0),
    ],
    ids=str,
)
def test_limits_for_continuous_integration(late, words, code, tmp_path):
    path = tmp_path / "o.json"
    result = invoke(late, *words, "--json", path)
    assert result.exit_code == code, result.output
    exceeded = json.loads(path.read_text())["summary"]["exceeded"]
    assert bool(exceeded) == bool(code)
    assert ("limit exceeded" in result.output) == bool(code)


def test_optimize_writes_the_scenario_back_with_its_comments(late, tmp_path):
    target = tmp_path / "new.yaml"
    result = invoke(late, "--optimize", "--write", target)
    assert result.exit_code == 0, result.output
    assert f"wrote {target}" in result.output
    assert invoke(target, "--check").exit_code == 0
    assert "# Too much for one." in target.read_text()
    assert "  - name: cam  # must not wait\n" in target.read_text()
    late.write_text(LATE.replace("deadline: 10", "deadline: 4"))
    result = invoke(late, "--optimize", "--write", tmp_path / "none.yaml")
    assert result.exit_code == 1
    assert "not written, as no setting" in result.output
    assert not (tmp_path / "none.yaml").exists()


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["none.yaml"], 2, "cannot read"),
        ([EXAMPLES / "same-pd.yaml", "--policy", "lottery"], 2, "expected strict, edf or fair"),
        ([EXAMPLES / "same-pd.yaml", "--window", "5"], 2, "START:END"),
        ([EXAMPLES / "same-pd.yaml", "--window", "9:3"], 2, "below END"),
        ([EXAMPLES / "same-pd.yaml", "--svg", "/nonexistent/x.svg"], 2, "there is no folder"),
        ([EXAMPLES / "same-pd.yaml", "--write", "x.yaml"], 2, "--optimize"),
        ([EXAMPLES / "same-pd.yaml", "--max-p99", "cam=3"], 2, "expected CLIENT=TIME, with one of Graph 1"),
        ([EXAMPLES / "same-pd.yaml", "--max-p99", "App=soon"], 2, "'soon' is no time"),
    ],
    ids=["unreadable", "policy", "window", "window order", "unwritable", "write", "client", "time"],
)
def test_bad_calls(args, code, words):
    result = invoke(*args)
    assert result.exit_code == code
    assert words in result.output
