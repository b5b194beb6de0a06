"""Miss rates over many arrivals, and whether their intervals keep what they promise."""

from __future__ import annotations

import json
import random

import pytest
from typer.testing import CliRunner

from openhtp.cli.main import app
from openhtp.core.errors import InvalidArgument
from openhtp.planning import load_scenario
from openhtp.planning.simulate import simulate
from openhtp.sweeping.monte_carlo import misses, monte_carlo, wilson
from tests.sweeping.studies import SCENARIO
from tests.sweeping.test_run import Here


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.replace("deadline: 100", "deadline: 45"))
    return path


def test_counts_are_those_of_single_plans(scenario):
    found = monte_carlo(scenario, 20, on=Here())
    runs = [simulate(load_scenario(scenario).with_seed(seed)) for seed in range(20)]
    llm = found.clients["llm"]
    assert llm.missed == sum(run.clients[1].missed for run in runs) > 0
    assert llm.requests == sum(len(run.clients[1].latencies_ns) for run in runs)
    assert llm.runs.share == sum(run.clients[1].missed > 0 for run in runs) / 20
    assert found.together.missed == llm.missed + found.clients["cam"].missed
    assert llm.rate.low < llm.rate.share < llm.rate.high


def test_known_intervals():
    # Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20.
    for hits, trials, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)):
        found = wilson(hits / trials, trials)
        assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def test_requests_that_miss_together_make_wide_intervals():
    apart = misses([(1, 10)] * 50 + [(0, 10)] * 50)
    together = misses([(10, 10)] * 5 + [(0, 10)] * 95)
    assert apart.rate.share == together.rate.share == 0.05
    width = [each.rate.high - each.rate.low for each in (apart, together)]
    assert width[1] > 2 * width[0]
    none = misses([(0, 10)] * 100)
    assert (none.rate.low, none.rate.high) == (0.0, wilson(0, 100).high)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Runs of 20 requests that share their luck: 95% of intervals should hold the true rate."""
    source = random.Random(5)
    held = 0
    for _ in range(400):
        runs = []
        for _ in range(200):
            rate = 0.25 if source.random() < 0.2 else 0.0
            runs.append((sum(source.random() < rate for _ in range(20)), 20))
        found = misses(runs).rate
        held += found.low <= 0.05 <= found.high
    assert 0.92 <= held / 400 <= 0.98


def test_nothing_to_draw_or_to_miss(scenario, tmp_path):
    calm = tmp_path / "calm.yaml"
    calm.write_text(scenario.read_text().replace("poisson", "every"))
    with pytest.raises(InvalidArgument, match=r"nothing in calm\.yaml is random"):
        monte_carlo(calm, 10)
    calm.write_text(scenario.read_text().replace("deadline: 12,", "").replace("deadline: 45,", ""))
    with pytest.raises(InvalidArgument, match=r"no client of calm\.yaml has a 'deadline'"):
        monte_carlo(calm, 10)
    with pytest.raises(InvalidArgument, match="at least 2"):
        monte_carlo(scenario, 1)


def test_the_command(scenario, tmp_path):
    path = tmp_path / "o.json"
    words = ["plan", str(scenario), "--seeds", "30", "--policy", "strict,fair", "--json", str(path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "30 seeds, 95% confidence" in done.output
    document = json.loads(path.read_text())["policies"]
    assert list(document) == ["strict", "fair"]
    assert document["strict"]["clients"]["llm"]["rate"]["high"] > 0
    for option in (["--optimize"], ["--check"], ["--max-miss-rate", "0"], ["--picture", "a.svg"]):
        bad = CliRunner().invoke(app, [*words[:4], *option])
        assert bad.exit_code == 2
        assert f"{option[0]} is about one run" in bad.output
    only = CliRunner().invoke(app, [*words[:6], "--json", "-"])
    assert list(json.loads(only.stdout)["policies"]) == ["strict", "fair"]
