"""Other arrivals of the same scenario, and models that are priced once for many scenarios."""

from __future__ import annotations

from pathlib import Path

from openhtp.planning import parse_scenario
from openhtp.planning.models import ModelCache
from openhtp.planning.parsing import scenario_from
from openhtp.planning.reading import read_text
from openhtp.planning.simulate import simulate

TEXT = """
duration: 4000
device: {soc: SM8650}
clients: [{name: a, run: 5, vtcm_mb: 1}, {name: b, run: 5, vtcm_mb: 1}]
events: [{client: a, poisson: 40}, {client: b, poisson: 40}]
"""


def test_a_seed_decides_all_arrivals_and_no_two_sources_draw_alike():
    scenario = parse_scenario(TEXT)
    assert scenario.is_random
    assert scenario.with_seed(3) == scenario.with_seed(3)
    runs = [simulate(scenario.with_seed(seed)) for seed in (0, 1)]
    assert len({tuple(client.latencies_ns) for run in runs for client in run.clients}) == 4
    assert not parse_scenario(TEXT.replace("poisson", "every")).is_random


def test_a_model_is_compiled_once_and_its_notes_are_told_each_time():
    text = TEXT.replace("run: 5", "model: 'zoo:tiny_mlp'")
    cache = ModelCache()
    first = scenario_from(read_text(text), "s", Path(), cache=cache)
    (program,) = cache.programs.values()
    second = scenario_from(read_text(text), "s", Path(), cache=cache)
    assert next(iter(cache.programs.values())) is program
    assert first == second
    assert any("tiny_mlp" in note for note in second.notes)
