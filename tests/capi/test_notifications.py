"""Notifications of clients in C: called without the interpreter's lock, in order, and never more than may wait."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from openhtp.capi import handles
from openhtp.capi.client_backend import ClientFunction, ClientNotifier
from openhtp.capi.graph import GraphHeld
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.runtime.calls.bound_call import RunAtOnce
from openhtp.runtime.calls.queue import CallbackReturn, Places, most_untold
from openhtp.vendor.backend import LibraryBackend
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.library import load
from tests.capi.raw_graph import RawGraph
from tests.waiting import PATIENCE_S, wait_until

X = TensorSpec("x", (1, 8), DType.FLOAT_32, None, TensorKind.APP_WRITE)
Y = TensorSpec("y", (1, 8), DType.FLOAT_32, None, TensorKind.APP_READ)
SLOW_US = 30_000
# How long others are kept out of the interpreter.
HELD_S = 5.0
NEVER_NS = 10**15

free, held = ctypes.CDLL(None), ctypes.PyDLL(None)
"""The C library, called without and with the interpreter's lock."""


class _Until(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Semaphore:
    """One of the C library's, whose functions can be a client's: each takes it as its parameter.

    Its memory is kept for good. A function that is still to be called may use it after the test has returned.
    """

    _kept: ClassVar[list[ctypes.Array[ctypes.c_char]]] = []

    def __init__(self) -> None:
        self._room = ctypes.create_string_buffer(64)
        self._kept.append(self._room)
        self.address = ctypes.addressof(self._room)
        assert free.sem_init(self._room, 0, 0) == 0

    def post(self, times: int = 1) -> None:
        for _ in range(times):
            free.sem_post(self._room)

    def is_posted_soon(self, library: ctypes.CDLL, patience_s: float = PATIENCE_S) -> bool:
        """Wait for it in this library; False after much patience."""
        until = _Until()
        free.clock_gettime(0, ctypes.byref(until))
        until.seconds += int(patience_s)
        return library.sem_timedwait(self._room, ctypes.byref(until)) == 0


def function(name: str) -> int:
    return ctypes.cast(getattr(free, name), ctypes.c_void_p).value or 0


class QueuedGraph:
    """A graph whose executions a caller computes at once, and the arrays that they use."""

    def __init__(self, context: LibraryContext) -> None:
        self._raw = RawGraph(context, (X, Y), [OpCall("Relu", "relu", (X,), (Y,))])
        arrays = [np.zeros((1, 8), np.float32) for _ in range(2)]
        self._rooms = [self._raw.room(name, array) for name, array in zip("xy", arrays, strict=True)]

    def queue(self, notify: int, param: int) -> int:
        x, y = (ctypes.addressof(room.struct) for room in self._rooms)
        return self._raw.ask("graphExecuteAsync", x, 1, y, 1, 0, 0, notify, param)


@pytest.fixture
def graph(lib_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QueuedGraph]:
    monkeypatch.setattr("openhtp.device.direct.SHORT_STEP_NS", 1 << 62)
    backend = LibraryBackend(load(lib_dir / "libQnnHtp.so"))
    yield QueuedGraph(LibraryContext.create(backend.create_device(soc="SM8650")))
    backend.free()


def test_a_client_is_called_without_the_interpreters_lock(
    graph: QueuedGraph, caplog: pytest.LogCaptureFixture
) -> None:
    """Only a function that took long needs it, for its warning: on a busy machine that may be any of them."""
    told, post = Semaphore(), function("sem_post")
    assert graph.queue(post, told.address) == 0
    assert told.is_posted_soon(free)
    told_meanwhile = told_later = 0
    while told_meanwhile < 3:
        assert graph.queue(post, told.address) == 0
        if told.is_posted_soon(held, HELD_S):
            told_meanwhile += 1
        else:
            assert told.is_posted_soon(free)
            told_later += 1
            assert told_later <= caplog.text.count("later notifications waited")


def test_a_client_whose_functions_do_not_return_is_held_back(graph: QueuedGraph) -> None:
    may_go, wait = Semaphore(), function("sem_wait")
    accepted: list[int] = []
    assert graph.queue(wait, may_go.address) == 0
    opened = handles.of_kind(GraphHeld)[-1].graph.context.opened
    most = most_untold(opened.places.depth)

    def work() -> None:
        while len(accepted) <= most:
            accepted.append(graph.queue(wait, may_go.address))

    client = threading.Thread(target=work)
    client.start()
    wait_until(lambda: opened.places.waiters)
    assert accepted == [0] * (most - 1)
    may_go.post(most + 2)
    client.join(PATIENCE_S)
    assert accepted == [0] * (most + 1)


def test_a_slow_function_is_told_of(graph: QueuedGraph, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert graph.queue(function("usleep"), SLOW_US) == 0
        wait_until(lambda: "later notifications waited" in caplog.text)
    assert f"{function('usleep'):#x}" in caplog.text


@pytest.fixture
def notifier(graph: QueuedGraph) -> ClientNotifier:
    """One by itself; the graph is there so that the library is loaded."""
    return ClientNotifier()


def tell(notifier: ClientNotifier, name: str, semaphore: Semaphore) -> None:
    notifier.tell(
        ClientFunction(function(name), semaphore.address), 0, CallbackReturn(Places(depth=1), RunAtOnce(notifier))
    )


def test_who_is_told_after_the_end_hears_of_it(notifier: ClientNotifier) -> None:
    told = Semaphore()
    for _ in range(3):
        tell(notifier, "sem_post", told)
        notifier.close()
        assert told.is_posted_soon(free)
        assert notifier.thread is None


def test_functions_that_were_not_begun_in_time_are_dropped(
    notifier: ClientNotifier, caplog: pytest.LogCaptureFixture
) -> None:
    begun, may_go, told = Semaphore(), Semaphore(), Semaphore()
    tell(notifier, "sem_post", begun)
    tell(notifier, "sem_wait", may_go)
    for _ in range(2):
        tell(notifier, "sem_post", told)
    assert begun.is_posted_soon(free)
    with caplog.at_level(logging.WARNING):
        notifier.close(0.01)
    assert "it and 2 more that wait are dropped" in caplog.text
    may_go.post()
    wait_until(lambda: notifier.thread is None)
    assert held.sem_trywait(told._room) != 0


def test_a_notification_comes_when_it_comes_whenever_it_was_expected(
    notifier: ClientNotifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long ago, now, within the time for which the thread stays awake, and much later."""
    monkeypatch.setattr(notifier, "_looks", True)
    told, times = Semaphore(), 0
    for ahead_ns in (-NEVER_NS, 0, 20_000, 1_000_000, NEVER_NS):
        for _ in range(3):  # a thread that sleeps learns with one notification when to expect the next
            notifier.expect(max(1, time.monotonic_ns() + ahead_ns))
            tell(notifier, "sem_post", told)
            assert notifier._delivery._counts[4] == 0, "what has come is not expected any more"
            assert told.is_posted_soon(free)
            times += 1
    notifier.close()
    assert notifier.returned()[0] == times
