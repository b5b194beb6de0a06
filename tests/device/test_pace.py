"""Paced steps: what is due when. The arithmetic itself is in tests/sched/test_timed.py."""

from __future__ import annotations

from openhtp.device.runner import ENDS_KEPT, Due, PacedSteps
from openhtp.sched.actions import AskYield, Start
from openhtp.sched.timed import Pace

WORK = Pace(step_ns=(100,), eviction_ns=10, restore_ns=5)


def test_the_earliest_is_due_first_and_a_stop_replaces_an_end() -> None:
    paced = PacedSteps()
    assert paced.next_at() is None
    paced.start(0, Start(1, 0, 11), WORK)
    paced.start(20, Start(2, 0, 12), Pace(step_ns=(70,)))
    paced.ask_yield(30, AskYield(1, 11))
    assert paced.next_at() == 40
    assert paced.pop() == Due(1, 0, 11, stopped=True, began_ns=0)
    paced.start(50, Start(1, 0, 13), WORK)
    assert paced.next_at() == 90
    assert paced.pop() == Due(2, 0, 12, stopped=False, began_ns=20)
    assert paced.next_at() == 50 + 5 + 60
    assert paced.pop() == Due(1, 0, 13, stopped=False, began_ns=55)
    assert paced.next_at() is None


def test_what_is_over_is_not_due_and_does_not_pile_up() -> None:
    paced = PacedSteps()
    for job in range(5 * ENDS_KEPT):
        paced.start(0, Start(job, 0, job + 1), WORK)
        if job:
            paced.forget(job)
    assert len(paced.ends) <= ENDS_KEPT + 3
    assert paced.next_at() == 100
    assert paced.pop().job == 0
    assert paced.next_at() is None


def test_a_job_that_is_not_paced_cannot_be_asked() -> None:
    paced = PacedSteps()
    paced.ask_yield(0, AskYield(7, 1))
    assert paced.next_at() is None
