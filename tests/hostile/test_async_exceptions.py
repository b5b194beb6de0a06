"""Exceptions out of nowhere: what Ctrl-C or an alarm raises on the main thread, at every place where it can.

CPython runs signal handlers at the start of a function, after a call into C and at the end of a loop's turn, and
nowhere else. One sweep over all places of a call (``interrupting.py``) meets each of the first two once; signals
then come at any time, in loops and in waiting calls too. ``fuzz_interrupts.py`` sweeps over every public call.
"""

from __future__ import annotations

import functools
import gc
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.core import locks, tidying
from openhtp.runtime.calls import execution
from openhtp.testing import hold, release
from tests.conftest import ramp, relu_graph
from tests.hostile.interrupting import Interrupt, Interrupting, hear_of_unclosed, places_of
from tests.waiting import PATIENCE_S, wait_until

ROUNDS = int(os.environ.get("OPENHTP_HOSTILE_ROUNDS", "1"))
# Events of an action at which the sweep stops if the action still has not come to its end.
MOST_EVENTS = 5000


class Rig:
    """A device with one graph, and a count of what was notified."""

    def __init__(self, device: htp.Device) -> None:
        self.device = device
        self.context = device.create_context(queue_depth=3)
        self.graph = relu_graph(self.context)
        self.other = relu_graph(self.context, "other")
        self.memory = self.context.register_memory(64)
        self.told: dict[int, int] = {}
        self.made = 0
        self.take_new_handles()

    def take_new_handles(self) -> None:
        self.signal = self.device.backend.create_signal()
        self.profile = self.device.backend.create_profile("detailed")

    def tell(self, number: int, status: int) -> None:
        self.told[number] = self.told.get(number, 0) + 1

    def session(self) -> dict[str, Any]:
        found: dict[str, Any]
        (found,) = (item for item in self.device.info()["sessions"] if item["pid"] == os.getpid())
        return found

    def contexts_on_device(self) -> int:
        return int(self.session()["contexts"])

    def graphs_on_device(self) -> set[str]:
        wait_until(lambda: not self.session()["tasks"])
        return set(self.session()["graphs"])

    # What is interrupted

    def execute_async(self) -> None:
        self.made += 1
        self.take_new_handles()
        self.graph.execute_async(
            {"x": ramp()},
            notify=self.tell,
            notify_param=self.made,
            signal=self.signal,
            profile=self.profile,
        )

    def fill_the_queue(self) -> None:
        for _ in range(5):
            self.made += 1
            self.graph.execute_async({"x": ramp()}, notify=self.tell, notify_param=self.made)

    def execute(self) -> None:
        self.take_new_handles()
        self.other.execute({"x": ramp()}, signal=self.signal, profile=self.profile)

    def result(self) -> None:
        self.made += 1
        self.graph.execute_async({"x": ramp()}, notify=self.tell, notify_param=self.made).result()

    def info(self) -> None:
        self.device.info()

    def register_memory(self) -> None:
        self.context.register_memory(64).deregister()

    def create_context(self) -> None:
        self.device.create_context().free()

    # What must hold afterwards

    def settle(self) -> None:
        tidying.flush()
        wait_until(
            lambda: not (self.context.pending or self.signal.in_use or self.profile.sheet.holder is not None)
        )

    def check(self) -> None:
        self.settle()
        assert not self.context.opened.places.waiters
        assert all(
            not calls for graph in (self.graph, self.other) for calls in graph.loaded.callee._under_way.values()
        )
        info = self.device.info()
        assert info["pid"] == self.device.pid, "another question's answer"
        assert "sessions" in info
        assert self.device.restarts == 0
        for graph in (self.graph, self.other):
            for pool in graph.loaded.callee.bindings._pools.values():  # type: ignore[union-attr]
                assert all(slot.holder is None for slot in pool._slots)
                assert len(set(map(id, pool._free))) == len(pool._free), "one slot for two calls"
                assert len(pool._slots) <= 2 * self.context.queue_depth, "slots are lost"
        assert max(self.told.values(), default=0) <= 1, "notified twice"

    def check_results(self) -> None:
        """Fill all places at once, so that none can be missing or there twice."""
        inputs = [ramp() + number for number in range(self.context.queue_depth)]
        runs = [self.graph.execute_async({"x": x}) for x in inputs]
        for x, run in zip(inputs, runs, strict=True):
            np.testing.assert_array_equal(run.result(PATIENCE_S)["y"], np.maximum(x, 0))
        np.testing.assert_array_equal(self.other.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """On plain locks: those that check their order are Python code, and can be interrupted as real ones cannot."""
    unclosed = hear_of_unclosed(monkeypatch)
    checked = locks.check_order(False)
    execution.renew_lock()
    try:
        with htp.Backend() as backend:
            yield Rig(backend.create_device())
    finally:
        locks.check_order(checked)
        execution.renew_lock()
    gc.collect()  # tracebacks of interrupts are kept in cycles
    assert unclosed == []


def interrupted_at(place: int, action: Callable[[], None]) -> bool:
    """Run an action and raise at its n-th place; False if it came to its end before."""
    tried = Interrupting(place, action)
    if tried.error is not None and not isinstance(tried.error, Interrupt):
        raise tried.error
    return tried.happened


ACTIONS = [
    Rig.execute_async,
    Rig.fill_the_queue,
    Rig.execute,
    Rig.result,
    Rig.info,
    Rig.register_memory,
    Rig.create_context,
]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_at_every_place(rig: Rig, action: Callable[[Rig], None]) -> None:
    for _ in range(ROUNDS):
        for _ in range(2):  # so that pools and ducts are there, or growing them is what is interrupted first
            # Of a long action, which compiles first and then asks the device, the end is what matters.
            begin = event = max(1, places_of(lambda: action(rig)) - MOST_EVENTS // 10)
            while interrupted_at(event, lambda: action(rig)):
                rig.check()
                event += 1
                assert event < begin + MOST_EVENTS
            assert event > 3, "nothing was interrupted"
            rig.check_results()
    rig.check()
    assert rig.contexts_on_device() == len(rig.device.contexts), "a context that nobody can free"
    finalized = {graph.name for graph in rig.context.graphs.values() if graph.is_finalized}
    assert rig.graphs_on_device() == finalized, "a graph that nobody can execute"


def unfinished(context: htp.Context) -> htp.Graph:
    graph = context.create_graph("made")
    x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
    graph.add_node("Relu", inputs=[x], outputs=[graph.add_tensor("y", (1, 8), "float32", kind="app_read")])
    return graph


@pytest.mark.parametrize("signalled", [False, True], ids=["plain", "with handles"])
def test_finalize_at_many_places(rig: Rig, signalled: bool) -> None:
    """Most of it compiles, and is met here and there; what is asked of the device at its end, at every place."""
    carried: dict[str, Any] = {"signal": rig.signal, "profile": rig.profile} if signalled else {}
    with rig.device.create_context() as context:
        graph = unfinished(context)
        places = places_of(functools.partial(graph.finalize, **carried))
    sparse = 1 if ROUNDS > 1 else 23
    kept = 0
    for event in [*range(1, places - 150, sparse), *range(max(1, places - 150), places + 20)]:
        with rig.device.create_context() as context:
            graph = unfinished(context)
            interrupted = interrupted_at(event, functools.partial(graph.finalize, **carried))
            rig.settle()
            there = rig.graphs_on_device() - {"g", "other"}
            assert there == ({"made"} if graph.is_finalized else set()), f"place {event} of {places}"
            if not graph.is_finalized:
                assert interrupted
                graph.finalize(**carried)
            kept += interrupted
            np.testing.assert_array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))
    assert kept > 150
    rig.check()


@pytest.mark.parametrize("raised", [KeyboardInterrupt, TimeoutError], ids=lambda kind: kind.__name__)
def test_at_any_time(rig: Rig, raised: type[BaseException]) -> None:
    """A thread that interrupts when it likes, and again while its last interrupt is being put right."""
    dice = random.Random(8)
    armed = False
    over = threading.Event()

    def handler(number: int, frame: FrameType | None) -> None:
        if armed:
            raise raised("from a handler")

    def disturb() -> None:
        while not over.wait(dice.uniform(1e-5, 1e-3)):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)  # type: ignore[arg-type]

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(150 * ROUNDS):
            action = dice.choice(ACTIONS)
            try:
                armed = True
                for _ in range(4):
                    action(rig)
            except raised:
                pass
            finally:
                armed = False
            rig.check()
        rig.check_results()
    finally:
        armed = False
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def test_waiting_for_a_place_can_be_interrupted(rig: Rig) -> None:
    hold(rig.device)
    runs = [rig.graph.execute_async({"x": ramp()}) for _ in range(3)]

    def interrupt() -> None:
        wait_until(lambda: rig.context.opened.places.waiters)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            rig.graph.execute_async({"x": ramp()})
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert rig.context.pending == 3
    assert not rig.context.opened.places.waiters
    release(rig.device)
    for run in runs:
        run.result(PATIENCE_S)
    rig.check_results()
