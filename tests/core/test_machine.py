"""Threads that are to work beside another."""

from __future__ import annotations

import os

import pytest

from openhtp.core import machine


def test_a_thread_leaves_a_processor_and_may_come_back() -> None:
    own = os.sched_getaffinity(0)
    if len(own) < 2:
        pytest.skip("one processor")
    here = machine.current_processor()
    assert here in own
    with machine.away_from(here):
        assert os.sched_getaffinity(0) == own - {here}
        assert machine.current_processor() != here
    assert os.sched_getaffinity(0) == own


def test_it_may_come_back_if_its_work_fails() -> None:
    own = os.sched_getaffinity(0)
    with pytest.raises(ValueError, match="no good"), machine.away_from(min(own)):
        raise ValueError("no good")
    assert os.sched_getaffinity(0) == own


def test_it_stays_where_there_is_no_other() -> None:
    own = os.sched_getaffinity(0)
    only = min(own)
    os.sched_setaffinity(0, {only})
    try:
        with machine.away_from(only):
            assert os.sched_getaffinity(0) == {only}
        with machine.away_from(-1):
            assert os.sched_getaffinity(0) == {only}
    finally:
        os.sched_setaffinity(0, own)


def test_it_stays_where_threads_may_not_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(pid: int, mask: set[int]) -> None:
        raise PermissionError("a sandbox")

    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    done = False
    with machine.away_from(min(os.sched_getaffinity(0))):
        done = True
    assert done
