"""A loop on a thread of its own: what others ask of it, and how it ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from openhtp.device.loop_thread import LoopOver, LoopThread
from tests.waiting import PATIENCE_S


class Idle:
    """A loop that only looks at its inbox."""

    def turn(self, inbox: LoopThread) -> None:
        inbox.poll(None)


@pytest.fixture
def watched() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


def started(watched: int) -> tuple[LoopThread, threading.Event]:
    ended = threading.Event()
    thread = LoopThread("test", watched)
    thread.start(Idle(), ended.set)  # type: ignore[arg-type]
    return thread, ended


def test_what_is_asked_is_done_on_the_thread_in_order(watched: int) -> None:
    thread, ended = started(watched)
    done: list[str] = []
    thread.post(lambda: done.append(threading.current_thread().name))
    assert thread.ask(lambda: [*done, "asked"]) == ["test", "asked"]
    with pytest.raises(ZeroDivisionError):
        thread.ask(lambda: 1 // 0)
    assert not ended.is_set()
    thread.stop()
    assert ended.is_set()


def test_after_its_end_everybody_is_told(watched: int) -> None:
    thread, ended = started(watched)
    os.eventfd_write(watched, 1)
    assert ended.wait(PATIENCE_S)
    with pytest.raises(LoopOver):
        thread.post(lambda: None)
    with pytest.raises(LoopOver):
        thread.ask(lambda: None)
    thread.post_if_open(lambda: None)
    thread.stop()


def test_who_waits_when_it_ends_is_told_too(watched: int) -> None:
    thread, ended = started(watched)
    caught: list[BaseException] = []
    held, go = threading.Event(), threading.Event()
    thread.post(lambda: (held.set(), go.wait(PATIENCE_S)))  # type: ignore[arg-type, func-returns-value]
    assert held.wait(PATIENCE_S)

    def wait() -> None:
        try:
            thread.ask(lambda: None)
        except LoopOver as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    thread.post(lambda: setattr(thread, "over", True))
    waiting.start()
    while not thread._waiting:
        pass
    go.set()
    waiting.join(PATIENCE_S)
    assert ended.wait(PATIENCE_S)
    assert len(caught) == 1
    thread.stop()
