"""Bad scenarios: one clear message each, with the line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings, strategies as st

import openhtp
from openhtp.core.enumerations import Priority
from openhtp.core.units import MIB
from openhtp.planning import BadScenario, load_scenario, parse_scenario
from openhtp.planning.scenario import Pattern

GOOD = """\
device: {hvx: 2, hmx: 1, vtcm_mb: 4}
clients:
  - name: cam
    priority: high
    vtcm_mb: 4
    deadline: 33
  - name: llm
    vtcm_mb: 2
events:
  - {client: cam, every: 10, run: 3, count: 5}
  - {client: llm, at: 0, run: 30}
"""

BAD = {
    "unknown key": ("priority: high", "priorty: high", 4, "unknown key 'priorty'; did you mean 'priority'"),
    "unknown key at the top": ("device:", "colour: red\ndevice:", 1, "unknown key 'colour'"),
    "too much vtcm": (
        "vtcm_mb: 4\n    dead",
        "vtcm_mb: 5\n    dead",
        5,
        "asks for vtcm_mb 5 MiB, the device has 4 MiB",
    ),
    "too many hvx": ("vtcm_mb: 2", "hvx: 3", 8, "asks for hvx 3, the device has 2"),
    "no such core": ("vtcm_mb: 2", "core: 1", 8, "cores go up to 0"),
    "negative time": ("at: 0", "at: -5", 11, "-5 is negative"),
    "negative run": ("run: 30", "run: -1", 11, "-1 is negative"),
    "zero period": ("every: 10", "every: 0", 10, "0 must be above 0"),
    "shorter than the clock": ("every: 10", "every: 0.0001", 10, "less than a nanosecond"),
    "endless": ("at: 0", "every: 1, until: 1.0e+12", 11, "requests up to here; more than"),
    "longer than a year": ("at: 0", "at: 1.0e+15", 11, "more than a year"),
    "not a number": (
        "deadline: 33",
        "deadline: soon",
        6,
        "one with a unit: 5ms, 1/30s, found 'soon'",
    ),
    "not finite": ("deadline: 33", "deadline: .inf", 6, "expected a number"),
    "unknown client": ("client: llm, at", "client: lm, at", 11, "did you mean 'llm'"),
    "unknown priority": ("priority: high", "priority: urgent", 4, "priority 'urgent' is unknown"),
    "two patterns": ("every: 10,", "every: 10, poisson: 3,", 10, "found 'every' and 'poisson'"),
    "no pattern": ("at: 0, ", "", 11, "found none"),
    "no duration of a run": (", run: 30", "", 11, "how long does it run"),
    "never ends": (", count: 5", "", 10, "this source never ends"),
    "name twice": ("name: llm", "name: cam", 7, "client 'cam' was defined in line 3"),
    "key twice": ("priority: high", "priority: high\n    priority: low", 5, "given twice"),
    "missing key": ("client: llm, ", "", 11, "'client' is missing"),
    "depth": ("deadline: 33", "depth: 301", 6, "301 is above 300"),
    "cycle": (
        "at: 0, run: 30}",
        "after: cam, run: 3}\n  - {client: cam, after: llm, run: 3}",
        9,
        "a cycle: llm after cam after llm",
    ),
    "follows itself": ("at: 0, run: 30}", "after: llm, run: 3}", 9, "a cycle: llm after llm"),
    "unknown soc": ("device: {hvx", "device: {soc: SM8651, hvx", 1, "SM8650"),
    "windowing too early": ("device: {hvx", "device: {soc: SM8650, windowing: true, hvx", 1, "v79"),
    "unknown policy": ("events:", "policy: lottery\nevents:", 9, "'lottery' is not one of strict, edf, fair"),
    "window without fair": ("events:", "policy: {name: edf, window: 3}\nevents:", 9, "only the fair policy"),
    "unit": ("device:", "unit: hours\ndevice:", 1, "'hours' is not one of"),
    "model without time": ("run: 30", "model: m.onnx", 11, "give 'soc'"),
    "broken yaml": ("events:", "events: [", None, "neither YAML nor JSON"),
    "closed deeper than the queue": ("at: 0", "closed: 11, count: 3", 11, "do not fit into a queue of depth 10"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_scenario(case):
    old, new, line, words = BAD[case]
    assert old in GOOD
    with pytest.raises(BadScenario) as caught:
        parse_scenario(GOOD.replace(old, new, 1), "s.yaml")
    message = caught.value.message
    assert words in message
    if line is not None:
        assert message.startswith(f"s.yaml:{line}: "), message


def test_the_good_one_is_good():
    scenario = parse_scenario(GOOD, "s.yaml")
    cam, llm = scenario.clients
    assert (cam.priority, cam.deadline_ns, cam.vtcm_bytes) == (Priority.HIGH, 33_000, 4 * MIB)
    assert (llm.priority, llm.hmx, llm.hvx) == (Priority.NORMAL, 1, 2)
    assert [source.pattern for source in scenario.sources] == [Pattern.EVERY, Pattern.AT]
    assert scenario.eviction_ns is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"clients": [{"name": "cam", "depth": 301}]}, "scenario: clients[0].depth: 301 is above 300"),
        ({"clients": [{"name": "a"}, {"name": "a"}]}, "client 'a' was defined at clients[0]"),
        (
            {"clients": [{"name": "cam", "priorty": 1}]},
            "scenario: clients[0]: unknown key 'priorty'; did you",
        ),
        ({"events": [{"client": "cam", "at": {0}}]}, "scenario: events[0].at: expected what a file can hold"),
        ({"device": None}, "scenario: device: expected keys and values, found nothing"),
    ],
)
def test_a_bad_mapping_is_refused_by_its_keys(changed, message):
    good = {"device": {"hvx": 1, "hmx": 1, "vtcm_mb": 1}, "clients": [{"name": "cam"}], "events": []}
    with pytest.raises(BadScenario) as refused:
        openhtp.plan({**good, **changed})
    assert message in refused.value.message


def test_a_list_is_wanted():
    with pytest.raises(BadScenario, match=r"s.yaml:2: clients: expected a list, found keys and values"):
        parse_scenario("device: {vtcm_mb: 1}\nclients: {a: 1}\nevents: []\n", "s.yaml")


def test_no_clients():
    with pytest.raises(BadScenario, match=r"s.yaml:2: clients: a scenario needs at least one client"):
        parse_scenario("device: {vtcm_mb: 1}\nclients: []\nevents: []\n", "s.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("- 1\n- 2\n", "expected keys and values, found a list"),
        ("a: &x [1]\nb: *x\n", "aliases"),
        ("[" * 40 + "]" * 40, "nested deeper"),
        ("[" + "0," * 250_000 + "0]", "more than 200000 values"),
        ("# " + "x" * 3_000_000, "too many for a scenario"),
        ("a: 2026-99-99\n", "s.yaml:1: a: .*month must be"),
        ("a: 1" + "0" * 5000, "s.yaml:1: a: .*cannot be read"),
        ("a: 0x" + "f" * 5000, "s.yaml:1: a: a number of more than 64 bits"),
        ("a: !!timestamp soon", "s.yaml:1: a: 'soon' cannot be read"),
        ("a: !!bool soon", "s.yaml:1: a: 'soon' cannot be read"),
        ("a: !!python/object:os.system ls", "neither YAML nor JSON: could not determine a constructor"),
        ("? [a, b]\n: 1\n", "s.yaml:1: unknown key '[?]'"),
        ("x" * 900 + ": 1", r"unknown key 'x{79}\.\.\.; known keys"),
        ('{"name": "\ud800"}', "neither YAML nor JSON"),
    ],
    ids=[
        *(
            "empty",
            "list",
            "alias",
            "deep",
            "many",
            "huge",
            "date",
            "digits",
            "hex",
            "timestamp",
            "bool",
            "python",
        ),
        *("key", "long key", "surrogate"),
    ],
)
def test_hostile_files(text, words):
    with pytest.raises(BadScenario, match=words):
        parse_scenario(text, "s.yaml")


def test_unreadable_files(tmp_path):
    with pytest.raises(BadScenario, match=r"cannot read .*none.yaml.*No such file.*expected a file"):
        load_scenario(tmp_path / "none.yaml")
    with pytest.raises(BadScenario, match="it is a folder; expected a regular file"):
        load_scenario(tmp_path)
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(BadScenario, match="cannot be read"):
        load_scenario(binary)
    large = tmp_path / "l.yaml"
    large.write_bytes(b"#" * 3_000_000)
    with pytest.raises(BadScenario, match="too many"):
        load_scenario(large)


def test_byte_granular_vtcm_comes_with_v81():
    text = """
device: {soc: %s}
clients: [{name: a, vtcm_bytes: 8323072}]
events: [{client: a, at: 0, run: 1}]
"""
    assert parse_scenario(text % "SM8850").clients[0].vtcm_bytes == 8323072
    with pytest.raises(BadScenario, match=r"multiples of 1 MiB"):
        parse_scenario(text % "SM8650")


def test_models_are_timed_by_whoever_can(tmp_path):
    text = "device: {soc: SM8650}\nclients: [{name: a, model: m.onnx}]\nevents: [{client: a, at: 0}]\n"
    with pytest.raises(BadScenario, match=r"scenario:2:.*model 'm.onnx': .*m.onnx"):
        parse_scenario(text)
    asked = []

    def model_time(path, soc):
        asked.append((path.name, soc.name))
        return 5_000

    assert parse_scenario(text, model_time=model_time).sources[0].run_ns == 5_000
    assert asked == [("m.onnx", "SM8650")]


def complaint(text, source):
    """What is said about a text: nothing if it is good. Any other error than BadScenario fails the test."""
    try:
        parse_scenario(text, source)
    except BadScenario as error:
        return error.message
    return None


values = st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=5)
trees = st.recursive(values, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=6), v))
KEYS = ("device", "clients", "events", "policy", "unit", "duration", "name")
INNER = ("soc", "hvx", "vtcm_mb", "name", "priority", "run", "at", "every", "closed", "client", "burst", "count")
entries = st.lists(st.dictionaries(st.sampled_from(INNER), values))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), trees | entries))
def test_any_tree_is_read_or_refused_with_its_place(tree):
    message = complaint(json.dumps(tree), "s.json")
    assert message is None or message.startswith("s.json")


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.text(max_size=4), st.integers(0, 8))
def test_any_slip_of_the_pen_is_read_or_refused_with_its_place(position, inserted, removed):
    message = complaint(GOOD[:position] + inserted + GOOD[position + removed :], "s.yaml")
    assert message is None or message.startswith("s.yaml")
