"""The loop's seat, which a caller may have while it computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from openhtp.device.seat import Seat


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
