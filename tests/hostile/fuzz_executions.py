"""Executions from several threads while others cancel, abort, free and kill: each ends, and is notified, once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from typing import Any

import numpy as np

import openhtp as htp
from tests.conftest import relu_graph
from tests.hostile.clerk import Clerk
from tests.hostile.leaks import Holdings
from tests.hostile.probe import check_on_clean_context, is_right, sample
from tests.hostile.tally import LONGEST_CALL, Budget, Watch, stray_text

SHORT = 8
"""Rounds of the short form."""

_THREADS = 4
_EACH = 60
_DISTURBANCES = ("none", "cancel", "trigger", "free", "kill", "free device", "timeouts", "inprocess")


def attack(rng: random.Random, budget: Budget, watch: Watch) -> None:
    """Rounds of a few hundred executions, each disturbed in another way."""
    with htp.Backend() as warm:
        relu_graph(warm.create_device().create_context()).execute({"x": sample(0)})
    holdings = Holdings()
    with htp.Backend() as backend:
        device = backend.create_device()
        while budget:
            disturbance = rng.choice(_DISTURBANCES)
            with watch.call(f"round with {disturbance}", limit=4 * LONGEST_CALL):
                if disturbance == "inprocess":
                    _within_this_process(rng, watch, backend)
                else:
                    _Round(rng, watch, device, disturbance).play()
            if disturbance == "free device":
                device = backend.create_device()
            check_on_clean_context(device, watch)
    holdings.check(watch)


def _within_this_process(rng: random.Random, watch: Watch, backend: htp.Backend) -> None:
    """Threads that take turns on a device without a process of its own."""
    with backend.create_device(transport="inprocess") as device, device.create_context(queue_depth=2) as context:
        graphs = [relu_graph(context, f"g{number}") for number in range(2)]

        def run(thread: int) -> None:
            own = random.Random(thread)
            for number in range(20):
                try:
                    outputs = own.choice(graphs).execute({"x": sample(number)})
                except htp.QnnError as error:
                    watch.found("wrong", f"a thread was refused: {type(error).__name__}: {error}")
                    return
                if not is_right(number, outputs):
                    watch.found("wrong", f"{outputs['y']} for {sample(number)}")

        _together([threading.Thread(target=run, args=(rng.randrange(1 << 30),)) for _ in range(_THREADS)])


def _together(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Round:
    def __init__(self, rng: random.Random, watch: Watch, device: htp.Device, disturbance: str) -> None:
        self.seed = rng.randrange(1 << 30)
        self.watch = watch
        self.device = device
        self.disturbance = disturbance
        self.clerk = Clerk()
        self.context = device.create_context(queue_depth=rng.choice((1, 3, 25)))
        self.graphs = [relu_graph(self.context, f"g{number}") for number in range(2)]
        self.waited_for = relu_graph(self.context, "waited for")
        self.moment = rng.randrange(_THREADS * _EACH)
        self.asked = 0
        self.disturbed = threading.Event()

    def play(self) -> None:
        _together([threading.Thread(target=self._submit, args=(number,)) for number in range(_THREADS)])
        if not self.disturbed.is_set():
            self._disturb()
        self.clerk.check(self.watch)
        if self.context.pending:
            self.watch.found("lost", f"{self.context.pending} places are never given back")
        with contextlib.suppress(htp.QnnError):
            self.context.free()

    def _submit(self, thread: int) -> None:
        rng = random.Random(self.seed + thread)
        for number in range(_EACH):
            self.asked += 1
            if self.asked > self.moment and not self.disturbed.is_set():
                self.disturbed.set()
                self._disturb()
            try:
                what = rng.choices((self._one, self._wait_for_one, self._build), (80, 15, 5))[0]
                what(rng, thread * _EACH + number)
            except Exception as error:
                problem = stray_text(error, may_be_lost=self.disturbance in ("kill", "free device"))
                self.watch.tally.count(type(error).__name__)
                if problem is not None:
                    self.watch.found("stray", problem)

    def _build(self, rng: random.Random, number: int) -> None:
        """Another graph, and memory, while all the rest goes on."""
        graph = relu_graph(self.context, f"built{number}")
        self.context.register_memory(4096).deregister()
        if not is_right(number, graph.execute({"x": sample(number)})):
            self.watch.found("wrong", f"a graph built beside others gives something else for {sample(number)}")

    def _wait_for_one(self, rng: random.Random, number: int) -> None:
        self.watch.tally.calls += 1
        if not is_right(number, self.waited_for.execute({"x": sample(number)})):
            self.watch.found("wrong", f"a synchronous call gives something else for {sample(number)}")

    def _one(self, rng: random.Random, number: int) -> None:
        ticket = self.clerk.ticket()
        options: dict[str, Any] = {}
        if self.disturbance in ("trigger", "timeouts"):
            backend = self.device.backend
            bound = rng.choice((1, 100, 3000)) if self.disturbance == "timeouts" else None
            options["signal"] = backend.create_signal(timeout_us=bound)
        outputs = {"y": np.empty((1, 8), np.float32)} if rng.random() < 0.5 else None
        try:
            execution = rng.choice(self.graphs).execute_async(
                {"x": sample(number)}, outputs, notify=self.clerk.notify, notify_param=ticket, **options
            )
        except htp.QnnError:
            self.clerk.refused(ticket)
            raise
        self.clerk.accepted(ticket, execution)
        self.watch.tally.calls += 1
        if self.disturbance == "cancel" and rng.random() < 0.5:
            execution.cancel()
        if self.disturbance == "trigger" and rng.random() < 0.5:
            with contextlib.suppress(htp.WrongState):
                options["signal"].trigger()
        if rng.random() < 0.3:
            self._check_result(execution, number)

    def _check_result(self, execution: htp.Execution, number: int) -> None:
        try:
            found = execution.result(timeout=LONGEST_CALL)
        except htp.ExecutionError as error:
            self.watch.tally.count(type(error).__name__)
            return
        except htp.InvalidHandle:
            self.watch.tally.count("InvalidHandle")
            return
        except TimeoutError:
            self.watch.found("hang", f"execution {execution.job} is not over")
            return
        if not is_right(number, found):
            self.watch.found("wrong", f"{found['y']} for {sample(number)}")

    def _disturb(self) -> None:
        self.disturbed.set()
        with contextlib.suppress(htp.QnnError, ProcessLookupError):
            if self.disturbance == "free":
                self.context.free()
            elif self.disturbance == "free device":
                self.device.free()
            elif self.disturbance == "kill":
                os.kill(self.device.pid, signal.SIGKILL)
