"""The schema that editors use says of a scenario what the reader says, as far as a schema can."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.planning.test_plan_parsing import BAD, GOOD
from tests.planning.test_plan_ranges import scenario_with

from openhtp.planning import keys, parse_scenario
from openhtp.planning.keys import RANGES, TIME
from openhtp.planning.schema import PATH

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
CHECK = jsonschema.Draft202012Validator(json.loads(PATH.read_text()))
# What no schema can know: names, sizes and amounts that depend on other places, and YAML's own mistakes.
READER_ONLY = {
    "too much vtcm",
    "too many hvx",
    "no such core",
    "unknown client",
    "name twice",
    "key twice",
    "broken yaml",
    "shorter than the clock",
    "endless",
    "longer than a year",
    "never ends",
    "no duration of a run",
    "not finite",
    "cycle",
    "follows itself",
    "unknown soc",
    "windowing too early",
    "window without fair",
    "model without time",
    "closed deeper than the queue",
}


def complaints(text: str) -> list[str]:
    return [error.message for error in CHECK.iter_errors(yaml.safe_load(text))]


def test_the_file_in_the_package_is_up_to_date_and_a_schema() -> None:
    command = [sys.executable, str(ROOT / "tools" / "gen_scenario_schema.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    jsonschema.Draft202012Validator.check_schema(CHECK.schema)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_follows_the_schema_and_names_it(path: Path) -> None:
    text = path.read_text()
    assert complaints(text) == []
    first = text.splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    assert (path.parent / first.partition("=")[2]).resolve() == PATH


@pytest.mark.parametrize("case", sorted(BAD.keys() - READER_ONLY))
def test_what_the_reader_refuses_is_marked(case: str) -> None:
    old, new, _, _ = BAD[case]
    assert complaints(GOOD) == []
    assert complaints(GOOD.replace(old, new, 1)) != []


@pytest.mark.parametrize("key", RANGES)
def test_numbers_have_the_bounds_of_the_table(key: str) -> None:
    bounds = RANGES[key]
    if bounds.unit == TIME:
        good, bad = ["0.5"], ["-1", *(["0"] if bounds.lowest else [])]
    else:
        good = [f"{bounds.lowest}", f"{bounds.highest}"]
        bad = [f"{bounds.lowest - 1}", f"{bounds.highest + 1}", *(["1.5"] if bounds.whole else [])]
    assert [number for number in good if complaints(scenario_with(key, number))] == []
    assert [number for number in bad if not complaints(scenario_with(key, number))] == []


def test_every_way_to_ask_passes_both() -> None:
    text = """
unit: ms
name: 7
duration: 50
policy: {name: fair, window: 50}
device: {soc: SM8650, platform: linux, sharing: true}
clients:
  - {name: a, priority: QNN_PRIORITY_HIGH, run: 5}
  - {name: b, priority: 150, kind: app, hvx: 1, vtcm_mb: 0, run: 1.5}
events:
  - {client: a, at: [1, 2]}
  - {client: a, every: 33, from: 10, until: 40}
  - {client: a, burst: 3, at: 5, every: 20}
  - {client: b, poisson: 8, seed: 7}
  - {client: a, closed: 2, think: 3}
  - {client: b, after: a, delay: 1}
"""
    assert complaints(text) == []
    parse_scenario(text)


def test_every_key_is_described() -> None:
    def described(node: Any) -> set[str]:
        found: set[str] = set()
        if isinstance(node, dict):
            for key, value in node.get("properties", {}).items():
                assert value["description"].endswith("."), key
                found.add(key)
            for value in node.values():
                found |= described(value)
        elif isinstance(node, list):
            for value in node:
                found |= described(value)
        return found

    assert described(CHECK.schema) == {
        *keys.TOP,
        *keys.DEVICE,
        *keys.CLIENT,
        *keys.EVENT,
        *keys.POLICY,
        *keys.SWITCHING,
        *keys.LLM,
        *keys.VOTES,
    }
