"""The numbers of a scenario: every one has bounds, as documented, and what multiplies is counted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import openhtp
import openhtp.planning
from openhtp.planning import BadScenario, load_scenario, parse_scenario
from openhtp.planning.keys import LLM, LLM_SHAPE, RANGES, TIME, in_words

DOCS = Path(__file__).parents[2] / "docs/scheduling.md"
DEVICE = ("cores", "dma_gbs", "eviction")
CLIENT = (
    "core",
    "hmx",
    "hvx",
    "vtcm_mb",
    "vtcm_bytes",
    "page_mb",
    "pd",
    "depth",
    "steps",
    "deadline",
    "timeout",
    "run",
    "size_mb",
    "load",
)


def scenario_with(key: str, number: object) -> str:
    """A scenario whose third line holds the number."""
    device, client, event, top = "", "", "at: 0, run: 1", ""
    given = f"{key}: {number}"
    if key in LLM:
        return _talking(key, number)
    if key in DEVICE:
        device = f", {given}"
    elif key in CLIENT:
        client = f", {given}"
    elif key == "room_mb":
        top = f"switching: [{{graphs: [b, a], {given}}}]"
    elif key in ("duration", "window"):
        top = f"duration: {number}" if key == "duration" else f"policy: {{name: fair, window: {number}}}"
    elif key in ("every", "poisson", "closed", "burst", "at"):
        event = f"{given}, run: 1" + ("" if key in ("at", "burst") else ", count: 1")
    else:
        event = f"{given}, run: 1, " + {"think": "closed: 1, count: 1", "delay": "after: b"}.get(key, "at: 0")
    return f"""device: {{hvx: 1, hmx: 1, vtcm_mb: 1{device}}}
clients: [{{name: b}}, {{name: a{client}}}]
events: [{{client: a, {event}}}]
{top}
"""


def _talking(key: str, number: object) -> str:
    """One with a language model."""
    sizes = dict.fromkeys(LLM_SHAPE, 8) if key in LLM_SHAPE else {"preset": "llama-3.2-1b"}
    words = ", ".join(f"{name}: {value}" for name, value in {**sizes, key: number}.items())
    return f"""device: {{soc: SM8750}}
clients: [{{name: a, llm: {{{words}}}}}]
events: [{{client: a, at: 0}}]
"""


@pytest.mark.parametrize("key", RANGES)
@pytest.mark.parametrize(
    "number", ["-1", "1.7e+308", "-1.7e+308", ".nan", ".inf", "1" + "0" * 300, "true", "x", "{}"]
)
def test_no_number_is_beyond_its_bounds(key: str, number: str) -> None:
    with pytest.raises(BadScenario, match=r"^s:\d: ") as caught:
        parse_scenario(scenario_with(key, number), "s")
    assert key in caught.value.message.split(":")[2]


@pytest.mark.parametrize("key", [key for key, bounds in RANGES.items() if bounds.unit != TIME])
def test_the_bounds_are_those_of_the_table(key: str) -> None:
    bounds = RANGES[key]
    beyond = [bounds.highest + 1] + ([bounds.lowest / 2] if bounds.lowest else [])
    for number in beyond:
        with pytest.raises(BadScenario, match=rf"{key}: .* (above|below) |{key}: 0 must be above 0"):
            parse_scenario(scenario_with(key, number), "s")


@pytest.mark.parametrize("key", [key for key, bounds in RANGES.items() if bounds.unit == TIME])
def test_times_reach_to_a_year(key: str) -> None:
    parse_scenario(scenario_with(key, 3.1e13))
    with pytest.raises(BadScenario, match="more than a year"):
        parse_scenario(scenario_with(key, 3.2e13))
    if RANGES[key].lowest:
        with pytest.raises(BadScenario, match="less than a nanosecond"):
            parse_scenario(scenario_with(key, 0.0001))


def test_the_documentation_has_the_same_bounds() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for key, bounds in RANGES.items():
        lowest, highest = in_words(bounds)
        assert f"| `{key}` | {bounds.unit} | {lowest} | {highest} |" in text, key


def chained(length: int, times: int = 1) -> str:
    events = [{"client": "c0", "at": 0, "run": 1}]
    events += [{"client": f"c{n}", "after": f"c{n - 1}", "run": 1} for n in range(1, length) for _ in range(times)]
    lines = [f"- {{{', '.join(f'{k}: {v}' for k, v in event.items())}}}" for event in events]
    clients = ", ".join(f"{{name: c{n}}}" for n in range(length))
    return f"device: {{hvx: 1, hmx: 1, vtcm_mb: 1}}\nclients: [{clients}]\nevents:\n" + "\n".join(lines)


def test_a_long_chain_is_followed_to_its_end() -> None:
    result = openhtp.plan(parse_scenario(chained(9000)))
    assert result["c8999"].max == 1


def test_a_long_ring_is_told_in_short() -> None:
    ring = chained(5000) + "\n- {client: c0, after: c4999, run: 1}"
    with pytest.raises(BadScenario, match=r"a cycle: (c\d+ after ){19}\.\.\. after c\d+ "):
        parse_scenario(ring)


def test_followers_multiply() -> None:
    with pytest.raises(BadScenario, match="requests up to here"):
        parse_scenario(chained(60, times=2))


def test_sources_add_up() -> None:
    one = "{client: a, at: 0, burst: 100000, every: 1, count: %d, run: 1}"
    text = "device: {hvx: 1, hmx: 1, vtcm_mb: 1}\nclients: [{name: a}]\nevents: [%s]"
    parse_scenario(text % (one % 60))
    with pytest.raises(BadScenario, match=r"events\[1\]: about 1.2e\+07 requests"):
        parse_scenario(text % ", ".join([one % 60] * 2))


def test_a_timeout_makes_a_closed_loop_shorter() -> None:
    text = """
duration: 1000000
device: {hvx: 1, hmx: 1, vtcm_mb: 1}
clients: [{name: a, timeout: 0.001}]
events: [{client: a, closed: 1, run: 1000}]
"""
    with pytest.raises(BadScenario, match="requests up to here"):
        parse_scenario(text)


def test_detail_of_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openhtp.planning, "MAX_DETAILED", 1000)
    scenario = parse_scenario(scenario_with("every", "1, count: 2000").replace(", count: 1}", "}"))
    with pytest.raises(BadScenario, match="give a window, or detail=False"):
        openhtp.plan(scenario)
    assert openhtp.plan(scenario, window=(0, 10)).marks()


@pytest.mark.parametrize("kind", ["pipe", "zero"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    if kind == "zero":
        path = Path("/dev/zero")
    with pytest.raises(BadScenario, match="expected a regular file with a scenario"):
        load_scenario(path)
    text = f"device: {{soc: SM8650}}\nclients: [{{name: a, model: {path}}}]\nevents: [{{client: a, at: 0}}]\n"
    with pytest.raises(BadScenario, match=r"model .* expected a regular file with an ONNX model"):
        parse_scenario(text)
