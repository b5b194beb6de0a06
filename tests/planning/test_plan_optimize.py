from __future__ import annotations

import pytest

from openhtp.core.enumerations import Priority
from openhtp.planning import optimize, parse_scenario
from openhtp.planning.optimize import overload

DEVICE = "device: {hvx: 1, hmx: 1, vtcm_mb: 1, eviction: 1}\n"


def scenario(clients, events, top="duration: 2000\n"):
    text = DEVICE + top + "clients:\n" + "".join(f"  - {c}\n" for c in clients)
    return parse_scenario(text + "events:\n" + "".join(f"  - {e}\n" for e in events))


def test_nothing_to_do_without_deadlines():
    advice = optimize(scenario(["{name: a}"], ["{client: a, every: 10, run: 1}"]))
    assert advice.holds
    assert "no client has a deadline" in advice.words[0]


def test_all_well_as_it_is():
    advice = optimize(scenario(["{name: a, deadline: 5}"], ["{client: a, every: 10, run: 1}"]))
    assert advice.holds
    assert advice.words == ("all deadlines hold as it is",)
    assert advice.tried == 1


def test_priorities_are_found():
    given = scenario(
        ["{name: camera, priority: low, deadline: 10}", "{name: llm, priority: high}"],
        ["{client: camera, every: 30, run: 5}", "{client: llm, closed: 1, run: 100}"],
    )
    advice = optimize(given)
    assert advice.holds
    assert advice.run.missed == 0
    assert advice.words != ("all deadlines hold as it is",)
    camera, llm = advice.scenario.clients
    assert (camera.priority, llm.priority) == (Priority.NORMAL_LOW, Priority.LOW)
    assert "camera: priority normal_low (was low)" in advice.words


def test_a_deadline_shorter_than_the_run_cannot_hold():
    given = scenario(["{name: camera, deadline: 4}"], ["{client: camera, every: 30, run: 5}"])
    advice = optimize(given)
    assert not advice.holds
    assert "camera cannot: one run takes 5 us, longer than its deadline of 4 us" in advice.words[0]


def test_a_deadline_shorter_than_run_and_eviction_cannot_hold():
    given = scenario(
        ["{name: camera, deadline: 5.5}", "{name: llm}"],
        ["{client: camera, every: 30, run: 5, from: 3}", "{client: llm, closed: 1, run: 100}"],
    )
    advice = optimize(given)
    assert not advice.holds
    assert "even with the highest priority" in advice.words[0]
    assert "waited while llm ran for 1 us" in advice.words[0]


def test_too_much_work_is_said_in_numbers():
    given = scenario(
        [f"{{name: c{n}, deadline: 10}}" for n in range(3)],
        [f"{{client: c{n}, every: 10, run: 5}}" for n in range(3)],
        top="duration: 500\n",
    )
    assert "150% of the time (c0 50%, c1 50%, c2 50%)" in overload(given)
    advice = optimize(given)
    assert not advice.holds
    assert any("150%" in words for words in advice.words)
    assert any("misses" in words and "the slowest run" in words for words in advice.words)


def test_bottom_up_finds_what_order_of_deadlines_does_not_need():
    given = scenario(
        [
            "{name: a, deadline: 12, priority: low}",
            "{name: b, deadline: 30, priority: low}",
            "{name: c, priority: low}",
        ],
        ["{client: a, every: 20, run: 6}", "{client: b, every: 40, run: 10}", "{client: c, closed: 1, run: 50}"],
    )
    advice = optimize(given)
    assert advice.holds
    assert advice.run.missed == 0


@pytest.mark.parametrize("level", list(Priority))
def test_every_level_can_be_given(level):
    given = scenario([f"{{name: a, priority: {level.name.lower()}}}"], ["{client: a, every: 10, run: 1}"])
    assert given.clients[0].priority is level
