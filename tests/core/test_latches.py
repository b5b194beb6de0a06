"""Waiting for other threads: who waits is told, once, and an interrupt anywhere leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading

import pytest

from openhtp.core.latches import Latch, Promise
from openhtp.core.threads import Errands, OwnThread, beside, finish
from tests.hostile.interrupting import Interrupting, places_of

# Python itself swallows what comes while it drops an object, and tells of it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PATIENCE_S = 20.0


def test_queues_are_those_in_c() -> None:
    """One written in Python, which the standard library falls back to, could be interrupted."""
    assert type(queue.SimpleQueue).__module__ == "builtins"
    assert queue.SimpleQueue.__module__ == "_queue"


def test_a_latch_opens_once_and_for_all() -> None:
    latch, seen = Latch(), []
    latch.then(lambda: seen.append(1))
    assert not latch.wait(0)
    assert not latch.wait(0.001)
    latch.unlock()
    latch.unlock()
    latch.then(lambda: seen.append(2))
    assert seen == [1, 2]
    assert latch.wait()
    assert latch.wait(0)


def test_all_who_wait_are_told() -> None:
    latch = Latch()
    waiting = [beside(lambda: latch.wait(PATIENCE_S), name="waiter") for _ in range(5)]
    while len(latch.calls) < 5:
        threading.Event().wait(0.001)
    latch.unlock()
    assert all(each.result(PATIENCE_S) for each in waiting)


def test_who_gives_up_leaves_nothing() -> None:
    latch = Latch()
    for _ in range(100):
        latch.wait(0)
    assert not latch.calls


def test_what_one_call_raises_keeps_no_other_from_being_made(caplog: pytest.LogCaptureFixture) -> None:
    latch, seen = Latch(), []
    latch.then(lambda: 1 / 0)
    latch.then(lambda: seen.append(1))
    latch.unlock()
    assert seen == [1]
    assert "ZeroDivisionError" in caplog.text


def test_the_first_end_of_a_promise_counts() -> None:
    promise: Promise[int] = Promise()
    with pytest.raises(TimeoutError):
        promise.result(0)
    promise.keep(1)
    promise.keep(2)
    promise.fail(ValueError())
    assert promise.result() == 1
    assert promise.exception() is None


def test_a_promise_can_be_awaited() -> None:
    async def both() -> tuple[int, str]:
        kept = await beside(lambda: 5, name="value")
        with pytest.raises(ZeroDivisionError) as caught:
            await beside(lambda: 1 / 0, name="error")
        return kept, str(caught.value)

    assert asyncio.run(both()) == (5, "division by zero")


def test_awaiting_that_was_cancelled_ends_nothing() -> None:
    promise: Promise[int] = Promise()

    async def wait() -> int:
        return await promise

    async def given_up() -> int:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(), 0.001)
        assert not promise._latch.calls
        promise.keep(3)
        return await promise

    assert asyncio.run(given_up()) == 3


def test_a_latch_can_be_waited_for_after_an_interrupt_at_any_place() -> None:
    """As with an Event it could not: its condition would still be locked."""
    opened = Latch()
    opened.unlock()
    for latch, timeout in ((opened, None), (Latch(), 0.001)):
        places = places_of(lambda latch=latch, timeout=timeout: latch.wait(timeout))  # type: ignore[misc]
        for place in range(1, places + 1):
            Interrupting(place, lambda latch=latch, timeout=timeout: latch.wait(timeout))  # type: ignore[misc]
            assert beside(lambda latch=latch: latch.wait(0), name="other").result(PATIENCE_S) is latch.is_open


def test_a_thread_begins_and_ends_whose_start_was_interrupted_at_any_place() -> None:
    """As one of the standard library does not, where that was while it waited for the thread's first sign."""
    for place in itertools.count(1):
        ran: list[int] = []
        thread = OwnThread(ran.append, place, name="interrupted")
        interrupting = Interrupting(place, thread.start)
        joined = beside(thread.join, name="other")
        joined.result(PATIENCE_S)
        assert not thread.is_alive()
        assert len(ran) == (thread.ident is not None)
        # How many places there are depends on which thread is faster: at the first that is not reached, all were.
        if not interrupting.happened:
            assert place > 5
            break


def test_joining_a_thread_can_be_interrupted_at_any_place() -> None:
    for place in range(1, 60):
        go = Latch()
        thread = OwnThread(go.wait, name="joined")
        thread.start()
        Interrupting(place, lambda thread=thread: thread.join(0.001))  # type: ignore[misc]
        assert thread.is_alive()
        go.unlock()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_work_is_finished_and_given_back_if_nobody_waits_for_it() -> None:
    places = places_of(lambda: finish(lambda: 1, name="counted"))
    for place in range(1, places + 1):
        made: list[int] = []
        returned: queue.SimpleQueue[list[int]] = queue.SimpleQueue()

        def work(made: list[int] = made) -> list[int]:
            made.append(1)
            return made

        tried = Interrupting(place, lambda work=work, put=returned.put: finish(work, name="work", discard=put))  # type: ignore[misc]
        if tried.result is None and made:
            assert returned.get(timeout=PATIENCE_S) is made


def test_what_work_raises_is_raised_to_who_waits() -> None:
    with pytest.raises(ZeroDivisionError):
        finish(lambda: 1 / 0, name="work")
    assert finish(lambda: finish(threading.current_thread, name="inner").name, name="outer") == "outer"


def test_errands_are_done_in_order_on_a_thread_that_goes() -> None:
    errands, seen, over = Errands("errands"), [], Latch()
    for number in range(50):
        errands.post(lambda number=number: seen.append((number, threading.current_thread())))
    errands.post(over.unlock)
    assert over.wait(PATIENCE_S)
    assert [number for number, _ in seen] == list(range(50))
    thread = seen[-1][1]
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    again = Latch()
    errands.post(again.unlock)
    assert again.wait(PATIENCE_S)


def test_errands_after_an_interrupt_at_any_place() -> None:
    places = places_of(lambda: Errands("counted").post(int))
    for place in range(1, places + 1):
        errands, seen, over = Errands("errands"), [], Latch()
        Interrupting(place, lambda errands=errands, seen=seen: errands.post(lambda: seen.append(1)))  # type: ignore[misc]
        errands.post(over.unlock)
        assert over.wait(PATIENCE_S)
        assert len(seen) <= 1
