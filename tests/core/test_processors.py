"""Threads that are to work beside another."""

from __future__ import annotations

import os

import pytest

from openhtp.core import processors


@pytest.fixture
def two() -> set[int]:
    found = os.sched_getaffinity(0)
    if len(found) < 2:
        pytest.skip("one processor")
    return found


def test_a_thread_leaves_a_processor_and_may_come_back(two: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    real, moves = os.sched_setaffinity, []

    def watched(pid: int, mask: set[int]) -> None:
        real(pid, mask)
        moves.append((mask, processors.current()))

    monkeypatch.setattr(os, "sched_setaffinity", watched)
    while not moves:  # the kernel may move it just before
        here = processors.current()
        assert here in two
        processors.leave(here)
    assert moves[0][0] == two - {here}
    assert moves[0][1] != here
    assert os.sched_getaffinity(0) == two


def test_it_stays_if_it_is_elsewhere_already(two: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, mask: pytest.fail("it was moved"))
    processors.leave(max(two) + 1)
    processors.leave(-1)


def test_it_stays_where_there_is_no_other() -> None:
    own = os.sched_getaffinity(0)
    only = min(own)
    os.sched_setaffinity(0, {only})
    try:
        processors.leave(only)
        assert os.sched_getaffinity(0) == {only}
    finally:
        os.sched_setaffinity(0, own)
