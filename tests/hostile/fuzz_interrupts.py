"""Every public call is interrupted at its places (``interrupting.py``); then all objects must be as good as new.

After each: the same call on the same object returns, or is refused, in bounded time; other calls on the device are
right; nothing is held or left on the device; and all that was put up can be freed. The exception is kept
meanwhile, as an interactive shell does, and with it whatever the frames of its traceback hold.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import time

import numpy as np

import openhtp as htp
from openhtp.core import locks, tidying
from openhtp.runtime.calls import execution
from openhtp.runtime.objects import log
from tests.conftest import ramp
from tests.hostile.interrupting import Interrupt, Interrupting, places_of
from tests.hostile.leaks import Holdings
from tests.hostile.scenes import DEPTH, Act, Scenery, scenes
from tests.hostile.tally import LONGEST_CALL, Budget, Watch

SHORT = 150
"""Interrupts of the short form."""

_PATIENCE = LONGEST_CALL
# Seconds after which a call hangs. Some start a process, on a machine that has other things to do.
_LIMIT = 4 * LONGEST_CALL
# What a call does last, when it has taken what it takes, is met more often than how it checks and compiles.
_END = 300
# These start processes, or compile.
_SLOW = {
    "Backend.create_device",
    "Device.free",
    "Device (with)",
    "estimate",
    "sweep",
    "PreparedModel",
    "PreparedModel.close",
}
_SLOW_SHARE = 0.1


def attack(rng: random.Random, budget: Budget, watch: Watch) -> None:
    """One call after the other, in rounds over all of them."""
    # Real locks are taken in C; those that check their order are Python code, and can be interrupted.
    locks.check_order(False)
    execution.renew_lock()
    log._lock = locks.make_lock("logs")
    watch.forgives_dropping = True
    warm = Scenery()  # what is made once and kept is made now
    warm.session.run_async(None, warm.feed, _nothing).result()
    warm.close()
    del warm
    holdings = Holdings()
    sweep = _Sweep(watch)
    titles = sorted(scenes())
    going = True
    while going:
        rng.shuffle(titles)
        for title in titles:
            if title in _SLOW and rng.random() > _SLOW_SHARE:
                continue
            going = bool(budget)
            if not going:
                break
            sweep.one(title, rng)
    with watch.call("the end of all scenes", _LIMIT):
        sweep.scenery.close()
    del sweep
    holdings.check(watch)


def _nothing(*told: object) -> None:
    """A callback."""


class _Sweep:
    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.scenery = Scenery()
        with watch.call("what takes long to be made", limit=_LIMIT):
            _ = self.scenery.session, self.scenery.prepared, self.scenery.generator
        self._scenes = scenes()
        self._places: dict[str, int] = {}

    def one(self, title: str, rng: random.Random) -> None:
        """One interrupt of one call."""
        with self.watch.call(f"{title}: made ready", _LIMIT):
            act = self._scenes[title](self.scenery)
            if title not in self._places:
                self._places[title] = places_of(act)
                self.scenery.take_down()
                act = self._scenes[title](self.scenery)
            count = self._places[title]
            place = rng.randint(max(1, count - _END) if rng.random() < 0.5 else 1, max(1, count))
            self._interrupt(f"{title} at place {place} of {count}", place, act)
        with self.watch.call(f"{title}: taken down", _LIMIT):
            self.scenery.take_down()
            try:
                self._check_device()
            except htp.DeviceLost as error:  # all further scenes would only show that there is no device
                self.watch.found("wrong", f"{title} has ended the device of all scenes: {error}")

    def _interrupt(self, text: str, place: int, act: Act) -> None:
        with self.watch.call(text, _LIMIT):
            tried = Interrupting(place, act)
        if tried.happened:
            self.watch.last.append(f"  {tried.where}")
            self.watch.tally.count("(interrupted)" if tried.error is not None else "(swallowed)")
        if tried.happened and tried.error is not None and not isinstance(tried.error, Interrupt):
            self.watch.found("stray", f"{text}, {tried.where}: {tried.error!r} came of it")
        self.scenery.put_up(tried.result)
        with self.watch.call(f"{text}: the same again", _LIMIT), contextlib.suppress(htp.QnnError):
            self.scenery.put_up(act())
        with self.watch.call(f"{text}: others", _LIMIT):
            self._check_calls()

    def _check_calls(self) -> None:
        """Others are served, and all places of the queue are there."""
        s = self.scenery
        tidying.flush()
        self._until(lambda: not s.context.pending, "places of the queue are held")
        if s.device.info()["pid"] != s.device.pid or s.device.restarts:
            self.watch.found("wrong", "another answer, or another device")
        inputs = [ramp() + number for number in range(DEPTH)]
        runs = [s.graph.execute_async({"x": x}) for x in inputs]
        right = [
            np.array_equal(run.result(_PATIENCE)["y"], np.maximum(x, 0))
            for x, run in zip(inputs, runs, strict=True)
        ]
        right.append(np.array_equal(s.other.execute({"x": ramp()})["y"], np.maximum(ramp(), 0)))
        if not all(right):
            self.watch.found("wrong", "other results than those of the inputs")

    def _check_device(self) -> None:
        """What is on the device is what somebody here can free."""
        s = self.scenery

        def settled() -> bool:
            (mine,) = (item for item in s.device.info()["sessions"] if item["pid"] == os.getpid())
            usable = [context for context in list(s.device.contexts) if context.is_usable]
            return not mine["tasks"] and int(mine["contexts"]) == len(usable)

        self._until(settled, "contexts on the device that nobody can free")

    def _until(self, holds: Act, words: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not holds():
            gc.collect(0)
            if time.monotonic() > deadline:
                self.watch.found("leak", words)
                return
            time.sleep(0.001)
