from __future__ import annotations

from dataclasses import replace

import pytest

from openhtp.core.enumerations import Priority
from openhtp.planning import BadScenario, parse_scenario, reading
from openhtp.planning.reading import rewritten
from openhtp.sched.policy import EarliestDeadline, Fair

FLOW = """\
# a comment
unit: ms
device: {hvx: 1, hmx: 1, vtcm_mb: 1, eviction: 1}
clients:
  - {name: cam, priority: low, deadline: 10, run: 5}  # the camera
  - {name: "llm, or so", run: 90}
events: [{client: cam, at: 0}, {client: "llm, or so", at: 0}]
"""
BLOCK = """\
policy:
  name: fair
  window: 100

device:
  hvx: 1
  hmx: 1
  vtcm_mb: 1
clients:
- name: cam   # the camera
  run: 5
- run: 90
  priority: high  # too high
  name: llm
events:
- client: cam
  at: 0
- client: llm
  at: 0"""
JSON = """{"device": {"hvx": 1, "hmx": 1, "vtcm_mb": 1},
 "clients": [{"name": "cam", "run": 5}, {"name": "llm", "run": 90, "depth": 3}],
 "events": [{"client": "cam", "at": 0}, {"client": "llm", "at": 0}]}"""


def changed(scenario, policy):
    levels = (Priority.HIGH, Priority.LOW)
    return scenario.with_choice(policy=policy, priorities=levels, depths=(scenario.clients[0].depth, 1))


@pytest.mark.parametrize("text", [FLOW, BLOCK, JSON], ids=["flow", "block", "json"])
@pytest.mark.parametrize("policy", [EarliestDeadline(), Fair(5_000_000)], ids=["edf", "fair"])
def test_the_file_says_what_was_found_and_keeps_all_else(text, policy):
    before = parse_scenario(text)
    after = changed(before, policy)
    written = rewritten(text, before, after)
    assert parse_scenario(written) == after
    for words in ("# a comment", "# the camera", "# too high", '"llm, or so"'):
        assert (words in written) == (words in text)


@pytest.mark.parametrize("text", [FLOW, BLOCK, JSON], ids=["flow", "block", "json"])
def test_no_change_is_the_same_file(text):
    before = parse_scenario(text)
    assert rewritten(text, before, before) == text


def test_what_would_not_say_the_same_is_never_written(monkeypatch):
    before = parse_scenario(FLOW)
    after = replace(before, policy=EarliestDeadline())
    for damage in ("[", "strict"):
        monkeypatch.setattr(reading, "_in_yaml", lambda value, damage=damage: damage)
        with pytest.raises(BadScenario, match="do it by hand"):
            rewritten(FLOW, before, after)
