"""Steps that are computed on the loop's thread."""

from __future__ import annotations

from openhtp.device.runner import Ended, InlineRunner
from openhtp.sched.actions import AskYield, Start


def test_a_step_that_has_not_begun_yields_without_being_computed() -> None:
    runner = InlineRunner({}, lambda: 7)
    runner.start(0, Start(job=1, step=3, token=5))
    runner.start(0, Start(job=2, step=0, token=6))
    runner.ask_yield(1, AskYield(job=1, token=5))
    assert runner.next_at(9) == 9
    assert runner.run_one(9) == Ended(1, 3, 5, yielded=True)
    assert runner.run_one(9) == Ended(2, 0, 6)
    assert runner.next_at(9) is None
    assert runner.run_one(9) is None
