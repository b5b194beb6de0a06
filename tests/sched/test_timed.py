"""The arithmetic of timed steps, as tables: the same for plans and for paced executions."""

from __future__ import annotations

import pytest

from openhtp.sched.timed import Pace, TimedRun

FIXED = Pace(step_ns=(50,), eviction_ns=10)
POINTS = Pace(step_ns=(100,), yield_every_ns=30, save_ns=5, wake_ns=3, restore_ns=7)
STEPS = Pace(step_ns=(40, 60), save_ns=5, wake_ns=3, restore_ns=7)

# name: work, asked at, due before the request, due after it, stops, left of the step
ASKED = {
    "fixed, work goes on meanwhile": (FIXED, 20, 50, 30, True, 20),
    "fixed, over by then": (FIXED, 40, 50, 50, False, 0),
    "next point, then saving": (POINTS, 20, 100, 38, True, 70),
    "on a point": (POINTS, 60, 100, 68, True, 40),
    "before it has begun": (POINTS, 0, 100, 8, True, 100),
    "no point before the end": (POINTS, 95, 100, 100, False, 0),
    "end of the step, then saving": (STEPS, 10, 40, 48, False, 0),
}


@pytest.mark.parametrize("name", ASKED)
def test_asked_to_yield(name):
    work, asked, due, then, stops, left = ASKED[name]
    run = TimedRun(work)
    assert run.start(0, 0) == due
    assert run.ask_yield(asked) == (then != due)
    assert (run.due, run.stops, run.left_ns) == (then, stops, left)


def test_what_was_stopped_comes_back_with_its_vtcm_and_runs_what_was_left():
    run = TimedRun(POINTS)
    run.start(0, 0)
    run.ask_yield(20)
    assert run.start(1000, 0) == 1000 + 7 + 70
    assert run.started == 1007
    assert not run.stops
    # Asked again while its VTCM comes back: nothing was done yet, so nothing less is left.
    assert run.ask_yield(1003)
    assert (run.due, run.left_ns) == (1007 + 5 + 3, 70)
    assert run.start(2000, 0) == 2000 + 7 + 70


def test_a_step_that_ended_while_yielding_brings_the_vtcm_back_for_the_next():
    run = TimedRun(STEPS)
    run.start(0, 0)
    assert run.ask_yield(10)
    assert run.start(100, 1) == 100 + 7 + 60
    assert not run.ask_yield(120)  # the last step: its end is the job's


def test_what_is_over_cannot_be_stopped():
    run = TimedRun(STEPS)
    run.start(0, 0)
    assert not run.ask_yield(41)
    assert run.start(50, 1) == 50 + 7 + 60


def test_slack_lets_a_step_end_that_is_nearly_over():
    on_wall = FIXED.on_a_wall_clock()
    assert on_wall.slack_ns == 2
    for asked, stopped in ((37, True), (38, False)):
        run = TimedRun(on_wall)
        run.start(0, 0)
        assert run.ask_yield(asked) is stopped


@pytest.mark.parametrize("fields", [{"step_ns": ()}, {"step_ns": (1, -1)}, {"step_ns": (1,), "save_ns": -1}])
def test_work_that_cannot_be(fields):
    with pytest.raises(ValueError, match="at least one step"):
        Pace(**fields)
