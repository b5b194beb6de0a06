"""The example scenarios against the documented tables, through the fixed JSON format."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
import yaml

import openhtp
from openhtp.core.errors import QnnError
from openhtp.planning import load_scenario, plan
from openhtp.planning.parsing import parse_scenario

EXAMPLES = Path(__file__).parents[2] / "examples"
G1, G2, A, _ = "Graph 1", "Graph 2", "App", None


def states(text):
    """``"w10-30 r30-60"`` as the JSON format has it."""
    words = {"r": "running", "w": "waiting", "p": "paused"}
    found = []
    for part in text.split():
        start, end = part[1:].split("-")
        found.append({"state": words[part[0]], "start": int(start), "end": int(end)})
    return found


CLIENTS = {
    "base-1.1-same-priority": {"A": "r0-30", "B": "w10-30 r30-60"},
    "base-1.2-lower": {"A": "r0-30", "B": "w10-30 r30-60"},
    "base-1.3-higher": {"A": "r0-30 p30-60 r60-80", "B": "w20-30 r30-60"},
    "base-1.3-slow-eviction": {"A": "r0-30 p30-60 r60-80", "B": "w10-30 r30-60"},
    "base-1.4-complex": {A: "r0-30 p30-60 r60-90", G2: "w10-90 r90-120", G1: "w20-30 r30-60"},
    "same-pd": {G1: "r0-30 w40-50 r50-70", A: "r10-60", G2: "w10-30 r30-50 p50-70 r70-90"},
    "two-pds": {
        G1: "r0-30 w60-70 r70-90",
        A: "r10-40 p40-70 r70-100",
        G2: "w10-40 r40-70 p70-100 r100-130",
    },
    "vtcm-sharing-same-pd": {"QNN1": "r0-30 p30-80 r80-150", "C1": "r10-210", "QNN2": "w20-30 r30-80"},
    "vtcm-sharing-other-pd-higher": {
        "QNN": "r0-30 p30-80 r80-150",
        "C1": "r10-30 p30-80 r80-160",
        "PD2": "w20-30 r30-80",
    },
    "vtcm-sharing-none-v68": {"QNN": "r0-50", "C1": "w10-50 r50-70"},
}


@pytest.mark.parametrize("name", CLIENTS)
def test_states(name):
    result = plan(EXAMPLES / f"{name}.yaml").to_json()
    assert result["clients"] == {client: states(text) for client, text in CLIENTS[name].items()}


COLUMNS = ("t", "HMX0", "HVX0", "HVX1", "VTCM0", "VTCM1", "VTCM2", "VTCM3")
ROWS = {
    "same-pd": [
        (0, G1, G1, _, _, G1, G1, G1),
        (10, G1, G1, A, A, G1, G1, G1),
        (30, G2, G2, A, A, _, G2, G2),
        (50, G1, G1, A, A, G1, G1, G1),
        (60, G1, G1, _, _, G1, G1, G1),
        (70, G2, G2, _, _, _, G2, G2),
        (90, _, _, _, _, _, _, _),
    ],
    "two-pds": [
        (0, G1, G1, _, _, G1, G1, G1),
        (10, G1, G1, A, A, G1, G1, G1),
        (30, _, _, A, A, _, _, _),
        (40, G2, G2, _, _, _, G2, G2),
        (70, G1, G1, A, A, G1, G1, G1),
        (90, _, _, A, A, _, _, _),
        (100, G2, G2, _, _, _, G2, G2),
        (130, _, _, _, _, _, _, _),
    ],
}


@pytest.mark.parametrize("name", ROWS)
def test_resource_map(name):
    rows = plan(EXAMPLES / f"{name}.yaml").to_json()["resources"]
    assert rows == [dict(zip(COLUMNS, row, strict=True)) for row in ROWS[name]]


def test_vtcm_sharing_lower_than_one():
    result = plan(EXAMPLES / "vtcm-sharing-other-pd-lower.yaml").to_json()
    assert result["clients"]["C1"] == states("r10-50 w80-90 r90-110")
    assert result["clients"]["PD2"][:3] == states("w20-60 r60-90 p90-120")
    at = {row["t"]: row for row in result["resources"]}
    assert [at[60][f"VTCM{cell}"] for cell in range(8)] == [None] * 2 + ["PD2"] * 6
    assert [at[90][f"VTCM{cell}"] for cell in range(2)] == ["C1"] * 2


def test_starvation_under_strict_and_not_under_fair():
    from dataclasses import replace

    from openhtp.sched.policy import Fair

    scenario = load_scenario(EXAMPLES / "starvation.yaml")
    strict = plan(scenario)
    assert strict["high"].max == pytest.approx(300, abs=5)
    assert strict["normal"].max == pytest.approx(15_000, rel=0.05)
    assert strict["low"].max == pytest.approx(30_000, rel=0.05)
    fair = plan(replace(scenario, policy=Fair()))
    assert max(fair[name].max for name in ("high", "normal", "low")) <= 1_500


def test_cameras_hold_their_deadlines_beside_the_llm():
    from dataclasses import replace

    scenario = load_scenario(EXAMPLES / "three-cameras-one-llm.yaml")
    minute = replace(scenario, duration_ns=scenario.duration_ns // 60)
    result = plan(minute, detail=False)
    assert result.missed == 0
    assert result["front camera"].runs == 1819
    assert result["llm"].yields > 3000
    assert result.run.utilisation()["hmx"] == pytest.approx(1, abs=0.01)


def leaves(value, *place):
    """Where the single values of a file are."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, *place, key)
    else:
        yield place


def changed(whole, place):
    """The same file with another value there."""
    copy = json.loads(json.dumps(whole))
    part = copy
    for key in place[:-1]:
        part = part[key]
    value = part[place[-1]]
    part[place[-1]] = (
        not value if isinstance(value, bool) else f"{value}x" if isinstance(value, str) else value + 1
    )
    return copy


def model_time(model, soc):
    """A stand-in for the cost model, which takes a while: another time for another name."""
    return 1_000_000 + zlib.crc32(f"{model.name} {soc.name}".encode()) % 1000


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_value_of_every_example_counts(path):
    """Another value anywhere in the file is another scenario, or an error: nothing is read past."""
    whole = yaml.safe_load(path.read_text())
    scenario = parse_scenario(json.dumps(whole), model_time=model_time)
    assert scenario == parse_scenario(json.dumps(whole), model_time=model_time)
    assert {source.client for source in scenario.sources} == set(range(len(scenario.clients)))
    for place in leaves(whole):
        try:
            other = parse_scenario(json.dumps(changed(whole, place)), model_time=model_time)
        except QnnError:
            continue
        assert other != scenario, place


def test_json_and_yaml_mean_the_same(tmp_path):
    scenario = {
        "device": {"hvx": 1, "hmx": 1, "vtcm_mb": 1, "eviction": 10},
        "clients": [{"name": "A", "priority": "low"}, {"name": "B", "priority": "high"}],
        "events": [{"at": 0, "client": "A", "run": 50}, {"at": 20, "client": "B", "run": 30}],
    }
    path = tmp_path / "s.json"
    path.write_text(json.dumps(scenario))
    expected = {name: states(text) for name, text in CLIENTS["base-1.3-higher"].items()}
    assert plan(path).to_json()["clients"] == expected
    assert plan(scenario).to_json()["clients"] == expected


def test_the_function_is_reached_from_the_package():
    assert openhtp.plan(EXAMPLES / "same-pd.yaml")["App"].max == 50
