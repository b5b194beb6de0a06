from __future__ import annotations

import json
import re

import pytest

from openhtp.core.enumerations import Priority
from openhtp.estimation import estimate
from openhtp.planning import load_scenario, optimize, parse_scenario, plan
from openhtp.planning.load import loads_of, overload
from openhtp.planning.optimize import worst_run
from openhtp.planning.parsing import chips_for
from openhtp.planning.simulate import simulate

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
    words = "150% of the time, 50% more than there is (c0 50%, c1 50%, c2 50%)"
    assert words in str(overload(given))
    advice = optimize(given)
    assert not advice.holds
    assert advice.words[0].startswith("nothing fits: ")
    assert words in advice.words[0]
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


CROWDED = scenario(
    [
        "{name: detector, priority: high, deadline: 33}",
        "{name: segmenter, deadline: 33}",
        "{name: depth, deadline: 100}",
    ],
    [
        "{client: detector, every: 33, run: 20}",
        "{client: segmenter, every: 33, run: 15}",
        "{client: depth, every: 100, run: 30}",
    ],
)


def test_nothing_that_starves_a_client_is_proposed_where_nothing_fits():
    advice = optimize(CROWDED)
    assert not advice.holds
    assert advice.scenario == CROWDED  # as it was given
    assert advice.words[0] == (
        "nothing fits: graphs never run side by side, and these ask for 136% of the time, 36% more than there is"
        " (detector 61%, segmenter 45%, depth 30%)"
    )
    assert "without segmenter all deadlines hold" in advice.words
    assert advice.words[-1].startswith("or take a chip on which these runs take 73% of the time; which one cannot")


def test_less_often_is_proposed_with_the_periods():
    crowded = scenario(
        ["{name: a, deadline: 100}", "{name: b, deadline: 100}"],
        ["{client: a, every: 20, run: 12}", "{client: b, every: 20, run: 12}"],
    )
    slower = next(words for words in optimize(crowded).words if "less often" in words)
    assert slower == "or ask 1.2 times less often (a every 24 us, b every 24 us)"


def test_a_backlog_that_grows_does_not_fit_though_all_deadlines_hold():
    crowded = scenario(
        ["{name: camera, priority: high, deadline: 33}", "{name: photos}"],
        ["{client: camera, every: 33, run: 10}", "{client: photos, every: 100, run: 90}"],
    )
    advice = optimize(crowded)
    assert not advice.holds
    assert "ask for 120% of the time" in advice.words[0]
    assert "without photos all deadlines hold" in advice.words
    verdict = "all deadlines hold, worst 34 % of its deadline (camera); 121 % of the time is asked for"
    assert plan(crowded).verdict.startswith(verdict)


def test_a_setting_under_which_somebody_starves_is_no_answer():
    hungry = scenario(
        ["{name: camera, priority: high, deadline: 12}", "{name: llm}"],
        ["{client: camera, every: 10, run: 10}", "{client: llm, closed: 1, run: 20}"],
    )
    advice = optimize(hungry)
    assert not advice.holds
    assert any("all deadlines hold only if llm starves: it waits for" in words for words in advice.words)
    assert "without llm all deadlines hold" in advice.words


def test_followers_and_counted_requests_are_part_of_the_load():
    given = scenario(
        ["{name: detector}", "{name: classifier}", "{name: photos}", "{name: llm}"],
        [
            "{client: detector, every: 40, run: 10}",
            "{client: classifier, after: detector, run: 8}",
            "{client: photos, every: 10, count: 5, run: 20}",
            "{client: llm, closed: 1, run: 50}",
        ],
    )
    assert loads_of(given) == pytest.approx([0.25, 0.2, 0.05, 0])


def test_the_chip_that_would_do_is_named(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        "unit: us\nduration: 20000\ndevice: {soc: SM8550}\n"
        "clients: [{name: a, deadline: 20000, model: zoo:small_cnn}]\n"
        "events: [{client: a, every: PERIOD}]\n".replace("PERIOD", str(period_between("SM8550", "SM8750")))
    )
    words = optimize(load_scenario(path), on_chip=chips_for(path)).words
    assert "nothing fits" in words[0]
    assert words[-1].startswith("or take S")
    named = words[-1].split()[2]
    assert loads_of(chips_for(path)(named))[0] < 1 < loads_of(load_scenario(path))[0]


def period_between(slow, fast):
    """A period that a network exceeds on one chip and keeps on another, in whole microseconds."""
    slow_us, fast_us = (estimate("zoo:small_cnn", soc=soc).total_us for soc in (slow, fast))
    assert fast_us + 2 < slow_us
    return int((slow_us + fast_us) / 2)


@pytest.mark.parametrize("level", list(Priority))
def test_every_level_can_be_given(level):
    given = scenario([f"{{name: a, priority: {level.name.lower()}}}"], ["{client: a, every: 10, run: 1}"])
    assert given.clients[0].priority is level


def test_what_the_slowest_run_waited_for_adds_up() -> None:
    """Its wait begins when it is asked for, even where its client's queue is full by then."""
    text = json.dumps(
        {
            "unit": "ms",
            "duration": 2000,
            "device": {"soc": "SM8650"},
            "clients": [
                {"name": "camera", "priority": "high", "deadline": 33, "run": 20},
                {"name": "faces", "deadline": 50, "run": 25, "depth": 2},
            ],
            "events": [{"client": "camera", "every": 33}, {"client": "faces", "every": 50}],
        }
    )
    words = worst_run(simulate(parse_scenario(text)), 1)
    took, *parts = (float(number.replace(",", "")) for number in re.findall(r"([\d,.]+) ms", words)[1:])
    assert "its own earlier runs ran for" in words
    assert sum(parts) == pytest.approx(took, rel=0.02)  # evictions are nobody's run
