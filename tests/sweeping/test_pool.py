"""Workers on this machine: none is left by whoever is interrupted while one starts."""

from __future__ import annotations

import gc

import pytest

from openhtp.sweeping import load_study
from openhtp.sweeping.pool import LocalPool
from tests.hostile.interrupting import Interrupting, hear_of_unclosed, places_of
from tests.hostile.leaks import children
from tests.waiting import wait_until

STUDY = {"measure": "estimate", "axes": {"model": "zoo:tiny_mlp", "soc": ["SM8650"]}}


def test_no_interrupt_leaves_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    unclosed = hear_of_unclosed(monkeypatch)
    study, before = load_study(STUDY), children()
    with LocalPool(1) as pool:
        places = places_of(lambda: pool.start(study))
    assert places > 3
    for place in range(1, places + 1):
        pool = LocalPool(1)
        interrupted = Interrupting(place, lambda pool=pool: pool.start(study))  # type: ignore[misc]
        pool.close()
        # The exception, with all that its traceback holds, is still there.
        assert interrupted.happened or interrupted.error is None
        wait_until(lambda: not children() - before)
    del interrupted
    gc.collect()
    assert unclosed == []
