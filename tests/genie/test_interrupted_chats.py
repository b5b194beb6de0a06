"""Ctrl-C during a chat: the next answer is that of its own question, and no process stays behind."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openhtp.core import interpreter, tidying
from openhtp.core.errors import DeviceLost
from openhtp.genie import Chat, chat as chats
from tests.hostile.interrupting import Interrupting, places_of
from tests.hostile.leaks import children
from tests.waiting import wait_until

# An interrupt may come while Python drops an object, in a weak set or in its own glob. Python swallows it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
STAND_IN = Path(__file__).with_name("stand_in_host.py")


@pytest.fixture
def open_chat(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Chat]:
    """Starts chats whose process has a dialog that repeats what it is told."""
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))))
    monkeypatch.setattr(interpreter, "command", lambda *words: [sys.executable, str(STAND_IN), words[-1]])
    monkeypatch.setattr(chats, "require_genie", lambda library: STAND_IN)
    return lambda: Chat(tiny_bundle)


@pytest.fixture
def chat(open_chat: Callable[[], Chat]) -> Iterator[Chat]:
    with open_chat() as opened:
        yield opened


def test_an_answer_that_nobody_reads_is_not_that_of_the_next(chat: Chat) -> None:
    chat.query("unread ", tokens=3)
    assert chat.ask("a ", tokens=2).text == "a a "
    next(chat.query("left ", tokens=500))
    assert chat.ask_tokens([7], tokens=2).tokens == [7, 7]
    chat.reset()
    assert "".join(chat.query("b", tokens=4)) == "bbbb"


@pytest.mark.parametrize(
    "call", [lambda chat: chat.ask("old ", tokens=5), lambda chat: chat.ask_tokens([1, 2], tokens=3), Chat.reset]
)
def test_an_interrupt_anywhere_leaves_the_next_answer_right(chat: Chat, call: Callable[[Chat], object]) -> None:
    call(chat)  # modules are imported once
    count = places_of(lambda: call(chat))
    assert count > 5
    for place in range(1, count + 1):
        tried = Interrupting(place, lambda: call(chat))
        expected = [place, 5, place, 5]
        assert chat.ask_tokens([place, 5], tokens=2).tokens == expected, tried.where
        assert chat.ask("new ", tokens=2).text == "new new ", tried.where


def test_an_interrupted_start_leaves_no_process(open_chat: Callable[[], Chat]) -> None:
    open_chat().close()
    before = children()
    count = places_of(lambda: open_chat().close())
    for place in range(1, count + 1, count // 12):
        tried = Interrupting(place, open_chat)
        if isinstance(tried.result, Chat):
            tried.result.close()
        del tried
        tidying.flush()
        gc.collect()
        wait_until(lambda: children() <= before)


def test_a_chat_that_is_dropped_ends_its_process(open_chat: Callable[[], Chat]) -> None:
    before = children()
    dropped = open_chat()
    assert dropped.ask("a").text == "a"
    del dropped
    gc.collect()
    wait_until(lambda: children() <= before)


def test_a_closed_chat_says_so(open_chat: Callable[[], Chat]) -> None:
    closed = open_chat()
    closed.close()
    closed.close()
    with pytest.raises(DeviceLost, match="has ended"):
        closed.ask("a")


def test_an_end_of_genie_is_told_with_its_cause_and_what_to_do(open_chat: Callable[[], Chat]) -> None:
    with open_chat() as lost, open_chat() as other:
        cause = "by SIGABRT: an execution that Genie had queued failed, most likely because the device was lost"
        with pytest.raises(DeviceLost, match=rf"{cause}.*; begin another chat to go on"):
            lost.ask("abort")
        assert other.ask("a ", tokens=2).text == "a a "
