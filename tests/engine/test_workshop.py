"""Making sessions: equal ones once, no more at a time than fit, and all of them over when one fails."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.waiting import PATIENCE_S

from openhtp.engine import workshop as workshop_module
from openhtp.engine.opened import PackagedSession
from openhtp.engine.sessions import SegmentSession
from openhtp.engine.workshop import Making, Workshop

MB = 1 << 20


def a_stage() -> SegmentSession:
    return SegmentSession(PackagedSession(None), (), ())


def test_equal_ones_are_made_once_also_for_another_graph() -> None:
    made: list[int] = []

    def make() -> SegmentSession:
        made.append(1)
        return a_stage()

    with Workshop() as workshop:
        first = workshop.make([Making(b"a", 1, make), Making(b"b", 1, make), Making(b"a", 1, make)])
        second = workshop.make([Making(b"b", 1, make)])
    assert len(made) == 2
    assert first[0] is first[2]
    assert first[1] is second[0]


class Meter:
    """What is in memory at once, by its own count, and at most."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = 0

    def making(self, key: bytes, nbytes: int, others: threading.Barrier | None = None) -> Making:
        def make() -> SegmentSession:
            with self.lock:
                self.now += nbytes
                self.most = max(self.most, self.now)
            if others is not None:
                others.wait(PATIENCE_S)
            with self.lock:
                self.now -= nbytes
            return a_stage()

        return Making(key, nbytes, make)


def test_no_more_is_read_at_once_than_the_budget_holds() -> None:
    meter = Meter()
    with Workshop(budget_bytes=25 * MB, all_threads=True) as workshop:
        workshop.make([meter.making(bytes([number]), (number % 6 + 1) * MB) for number in range(40)])
    assert 0 < meter.most * 2 <= 25 * MB, "as it was read, and as the runtime copies it"


def test_what_is_larger_than_the_budget_is_made_alone() -> None:
    meter = Meter()
    with Workshop(budget_bytes=MB, all_threads=True) as workshop:
        assert len(workshop.make([meter.making(b"a", 9 * MB), meter.making(b"b", 8 * MB)])) == 2
    assert meter.most == 9 * MB


def test_within_a_budget_parts_are_made_in_their_order() -> None:
    """A part that waited while others passed would hold the whole that it is cut from for all that time."""
    begun: list[int] = []

    def making(number: int) -> Making:
        def make() -> SegmentSession:
            begun.append(number)
            hashlib.sha256(bytes(MB)).digest()  # other threads have a turn
            return a_stage()

        return Making(bytes([number]), MB, make)

    with Workshop(budget_bytes=MB, all_threads=True) as workshop:
        workshop.make([making(number) for number in range(100)])
    assert begun == sorted(begun)


def test_two_of_a_short_load_are_made_at_the_same_time() -> None:
    import os

    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor")
    meter, both = Meter(), threading.Barrier(2)
    with Workshop() as workshop:
        workshop.make([meter.making(b"a", MB, both), meter.making(b"b", MB, both)])
    assert meter.most == 2 * MB


@pytest.mark.parametrize(
    ("processors", "accelerated", "side_by_side"), [(2, False, 1), (2, True, 2), (3, False, 2), (4, True, 4)]
)
def test_a_long_load_leaves_a_processor_to_whoever_computes(
    monkeypatch: pytest.MonkeyPatch, processors: int, accelerated: bool, side_by_side: int
) -> None:
    """Unless it was asked to be quick. A short one is over before anybody starves."""
    monkeypatch.setattr(workshop_module.machine, "processor_count", lambda: processors)
    asked: list[int] = []
    helpers = ThreadPoolExecutor(processors)

    def counted() -> ThreadPoolExecutor:
        asked.append(1)
        return helpers

    monkeypatch.setattr(workshop_module, "_helpers", counted)
    meter, together = Meter(), threading.Barrier(side_by_side)
    with helpers, Workshop(all_threads=accelerated) as workshop:
        workshop.make([meter.making(bytes([number]), 30 * MB, together) for number in range(4 * side_by_side)])
    assert meter.most == side_by_side * 30 * MB
    assert len(asked) == side_by_side - 1


def test_workshops_that_are_busy_together_have_one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a list of contexts: more threads than processors would only be in each other's way."""
    monkeypatch.setattr(workshop_module.machine, "processor_count", lambda: 2)
    began, go_on = threading.Event(), threading.Event()
    threads: set[str] = set()

    def wait() -> SegmentSession:
        began.set()
        go_on.wait(PATIENCE_S)
        return a_stage()

    def note() -> SegmentSession:
        threads.add(threading.current_thread().name)
        return a_stage()

    def first() -> None:
        with Workshop() as workshop:
            workshop.make([Making(b"w", 1, wait)])

    other = threading.Thread(target=first)
    other.start()
    assert began.wait(PATIENCE_S)
    with Workshop() as workshop:
        workshop.make([Making(bytes([number]), 1, note) for number in range(50)])
    go_on.set()
    other.join()
    assert threads == {threading.current_thread().name}


def test_a_failure_is_raised_when_nothing_is_under_way_any_more() -> None:
    ended: list[Any] = []

    def fail() -> SegmentSession:
        raise ValueError("no good")

    def succeed() -> SegmentSession:
        ended.append(1)
        return a_stage()

    with Workshop() as workshop:
        with pytest.raises(ValueError, match="no good"):
            workshop.make([Making(b"a", 9, fail), *(Making(bytes([n]), 1, succeed) for n in range(5))])
        assert len(ended) == 5


def test_what_is_held_is_made_once_and_a_failure_is_everybodys() -> None:
    made: list[int] = []

    def make() -> Any:
        made.append(1)
        return np.zeros(3)

    def fail() -> Any:
        raise ValueError("no good")

    with Workshop() as workshop:
        assert workshop.hold(b"a", make) is workshop.hold(b"a", make)
        assert made == [1]
        for _ in range(2):
            with pytest.raises(ValueError, match="no good"):
                workshop.hold(b"b", fail)


def test_data_for_so_many_uses_is_kept_no_longer() -> None:
    made: list[int] = []

    def make() -> np.ndarray:
        made.append(len(made))
        return np.zeros(3)

    with Workshop() as workshop:
        held = [workshop.hold("key", make, 2) for _ in range(2)]
        assert held[0] is held[1]
        assert made == [0]
        assert workshop.hold("key", make, 2) is not held[0]
        assert made == [0, 1]
        kept = workshop.hold("other", make)
        assert all(workshop.hold("other", make) is kept for _ in range(3))
