"""The loop's seat, which a caller may have while it computes."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

import pytest

from openhtp.core.latches import Promise
from openhtp.core.threads import beside
from openhtp.device.seat import NewsWatch, Seat
from tests.waiting import PATIENCE_S, wait_until


def never() -> int:
    """A clock that nobody is to look at: who does waits for something."""
    raise AssertionError("somebody waits")


@pytest.fixture
def seat() -> Seat:
    return Seat(never)


def test_who_comes_behind_a_long_run_does_not_wait_for_it(seat: Seat) -> None:
    first, second = object(), object()
    assert seat.try_take(first)
    seat.soon_free = False
    assert not seat.try_take(second)
    seat.give_up(first)
    assert seat.try_take(second)


def test_who_comes_behind_a_short_run_waits_a_moment() -> None:
    times = iter([0, 0, 1, 100_001])
    seat = Seat(lambda: next(times))
    assert seat.try_take(object())
    assert not seat.try_take(object())
    assert list(times) == []


def test_a_caller_leaves_for_what_was_posted_before_the_loop_is_awake(seat: Seat) -> None:
    caller, done = object(), list[str]()
    assert seat.try_take(caller)
    seat.want()
    assert seat.wanted
    seat.leave_over(lambda: done.append("the rest"))
    seat.give_up(caller)
    seat.take()
    assert done == ["the rest"]
    assert not seat.wanted


@pytest.mark.parametrize("step", [Seat.take, Seat.leave])
def test_a_wish_ends_when_the_loop_has_been_awake(seat: Seat, step: Callable[[Seat], None]) -> None:
    if step is Seat.leave:
        seat.take()
    seat.want()
    step(seat)
    assert not seat.wanted
    if step is Seat.take:
        seat.leave()
    assert seat.try_take(object())


def visiting(seat: Seat, guest: object) -> Promise[bool]:
    """Somebody sits, and there is a guest at the door."""
    visit = beside(lambda: seat.visit(guest), name="guest")
    wait_until(lambda: seat.guests)
    return visit


def test_a_host_sits_while_its_guest_computes(seat: Seat) -> None:
    host, guest = object(), object()
    assert seat.try_take(host)
    seat.soon_free = False
    visit = visiting(seat, guest)
    hosting = beside(lambda: seat.entertain(host), name="host")
    assert visit.result(PATIENCE_S)
    assert not hosting.done()
    assert not seat.try_take(object())
    assert not seat.visit(object())
    seat.entertain(guest)  # it has no guest of its own
    assert not hosting.done()
    seat.give_up(guest)
    hosting.result(PATIENCE_S)
    assert not seat.wanted
    seat.give_up(host)
    assert seat.try_take(guest)


def test_who_is_at_the_door_when_the_caller_leaves_sits_down(seat: Seat) -> None:
    caller, guest = object(), object()
    assert seat.try_take(caller)
    visit = visiting(seat, guest)
    seat.give_up(caller)
    assert visit.result(PATIENCE_S)
    assert not seat.guests
    seat.soon_free = False
    assert not seat.try_take(caller)
    seat.give_up(guest)
    assert seat.try_take(caller)


def test_the_loop_waits_for_the_host_and_not_for_the_guest(seat: Seat) -> None:
    host, guest, done = object(), object(), list[str]()
    assert seat.try_take(host)
    visit = visiting(seat, guest)
    loop = beside(seat.take, name="loop")
    wait_until(lambda: seat._loop_waits)
    hosting = beside(lambda: seat.entertain(host), name="host")
    assert visit.result(PATIENCE_S)
    seat.leave_over(lambda: done.append("the rest of the guest's"))
    seat.give_up(guest)
    hosting.result(PATIENCE_S)
    assert seat.wanted
    seat.leave_over(lambda: done.append("the rest of the host's"))
    assert not done
    seat.give_up(host)
    loop.result(PATIENCE_S)
    assert done == ["the rest of the guest's", "the rest of the host's"]


def test_nobody_is_the_guest_of_the_loop(seat: Seat) -> None:
    seat.soon_free = False
    seat.take()
    seat.soon_free = False
    assert not seat.visit(object())
    assert not seat.guests
    seat.leave()
    caller = object()
    assert seat.visit(caller)
    seat.give_up(caller)
    seat.take()


def test_a_guest_that_is_interrupted_keeps_nobody_waiting(seat: Seat, monkeypatch: pytest.MonkeyPatch) -> None:
    class InterruptedWait:
        def get(self) -> None:
            raise KeyboardInterrupt

        def put(self, news: bool) -> None: ...

    host, guest = object(), object()
    assert seat.try_take(host)
    with monkeypatch.context() as patch:
        patch.setattr("openhtp.device.seat.queue.SimpleQueue", InterruptedWait)
        with pytest.raises(KeyboardInterrupt):
            seat.visit(guest)
    hosting = beside(lambda: seat.entertain(host), name="host")
    seat.give_up(guest)  # as is done for whoever is interrupted
    hosting.result(PATIENCE_S)
    seat.give_up(host)
    seat.take()


def test_a_host_that_is_interrupted_waits_for_its_guest_all_the_same(
    seat: Seat, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, guest = object(), object()
    assert seat.try_take(host)
    visit = visiting(seat, guest)
    naps = list[float]()

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            seat.give_up(guest)
        raise KeyboardInterrupt

    monkeypatch.setattr("openhtp.device.seat.nap", nap)
    with pytest.raises(KeyboardInterrupt):
        seat.entertain(host)
    assert len(naps) == 3
    assert visit.result(PATIENCE_S)


@pytest.fixture
def watch() -> NewsWatch:
    """One that may look."""
    watch = NewsWatch(select.epoll(), lambda: 0)
    watch.came(0)
    return watch


def test_the_loop_looks_only_if_its_last_work_came_soon(watch: NewsWatch) -> None:
    assert watch.patience_ns() > 0
    watch.came(1_000_000_000)
    assert watch.patience_ns() == 0
    watch.came(100_000)
    assert watch.patience_ns() > 0


def looks(watch: NewsWatch, count: int, **ends: bool) -> int:
    """How often it looks in so many waits; each look ends as given."""
    found = 0
    for _ in range(count):
        if watch.patience_ns():
            found += 1
            watch.looked(**ends)
        watch.came(0)
    return found


def test_a_loop_that_looks_in_vain_looks_ever_more_rarely(watch: NewsWatch) -> None:
    assert looks(watch, 1000, found=False) < 20
    assert looks(watch, 100_000, found=False) < 120


def test_a_loop_that_finds_something_again_looks_as_before(watch: NewsWatch) -> None:
    looks(watch, 3, found=False)
    assert looks(watch, 1000, found=True) > 900
    looks(watch, 1, found=False)
    assert looks(watch, 100, found=True) > 90


def test_a_loop_whose_processor_was_taken_once_soon_looks_again(watch: NewsWatch) -> None:
    looks(watch, 1, found=True, was_taken=True)
    assert looks(watch, 5, found=True) == 0
    assert looks(watch, 1000, found=True) > 900


def test_a_loop_whose_processor_somebody_else_needs_hardly_looks(watch: NewsWatch) -> None:
    assert looks(watch, 100_000, found=True, was_taken=True) < 120


def test_a_loop_whose_processor_is_taken_now_and_then_looks_most_of_the_time(watch: NewsWatch) -> None:
    """A host takes it away for milliseconds, as if it were nobody's."""
    count = 0
    for _ in range(100):
        count += looks(watch, 199, found=True) + looks(watch, 1, found=True, was_taken=True)
    assert count > 18_000


def test_a_wait_ends_with_news_and_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asleep and, as the work came soon, looking."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    epoll, news = select.epoll(), os.eventfd(0, os.EFD_NONBLOCK)
    epoll.register(news, select.EPOLLIN)
    watch = NewsWatch(epoll, time.monotonic_ns)
    for _ in range(4):
        os.eventfd_write(news, 1)
        watch.wait(None)
        os.eventfd_read(news)
        watch.wait(1000)
        assert not epoll.poll(0)
    os.close(news)
