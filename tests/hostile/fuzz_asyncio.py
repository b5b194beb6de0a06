"""Awaited executions whose loops close, whose tasks are cancelled, whose callbacks exit: delivery goes on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Callable

import numpy as np

import openhtp as htp
from openhtp.testing import hold, release
from tests.conftest import relu_graph
from tests.hostile.clerk import Clerk
from tests.hostile.leaks import Holdings
from tests.hostile.probe import Neighbour, is_right, sample
from tests.hostile.tally import LONGEST_CALL, Budget, Watch

SHORT = 10
"""Rounds of the short form."""

Executions = list[htp.Execution]


def attack(rng: random.Random, budget: Budget, watch: Watch) -> None:
    """Rounds of executions that stand still until those who await them are gone."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it tells of the tasks that this attack destroys
    with htp.Backend() as warm:
        relu_graph(warm.create_device().create_context()).execute({"x": sample(0)})
    asyncio.run(asyncio.sleep(0))
    holdings = Holdings()
    with htp.Backend() as backend:
        device = backend.create_device()
        neighbour = Neighbour(device)
        while budget:
            way = rng.choice(_WAYS)
            with watch.call(way.__name__, limit=3 * LONGEST_CALL):
                _round(rng, watch, device, way)
            neighbour.check(watch)
    holdings.check(watch)


def _round(
    rng: random.Random,
    watch: Watch,
    device: htp.Device,
    way: Callable[[random.Random, htp.Device, Executions], None],
) -> None:
    clerk = Clerk()
    context = device.create_context(queue_depth=50)
    graph = relu_graph(context)
    hold(device)
    try:
        made = []
        for number in range(rng.randint(1, 30)):
            ticket = clerk.ticket()
            outputs = {"y": np.empty((1, 8), np.float32)} if rng.random() < 0.3 else None
            execution = graph.execute_async(
                {"x": sample(number)}, outputs, notify=clerk.notify, notify_param=ticket
            )
            if outputs is not None and rng.random() < 0.5:
                outputs["y"].flags.writeable = False
            clerk.accepted(ticket, execution)
            if rng.random() < 0.2:
                execution.add_done_callback(rng.choice((_exit, _interrupt, _fail)))
            made.append(execution)
        way(rng, device, made)
    finally:
        release(device)
    clerk.check(watch)
    for number, execution in enumerate(made):
        if execution.done() and execution.exception() is None and not is_right(number, execution.result()):
            watch.found("wrong", f"{execution.result()['y']} for {sample(number)}")
    if context.pending:
        watch.found("lost", f"{context.pending} places are never given back")
    context.free()


async def _all(executions: Executions) -> None:
    async def one(execution: htp.Execution) -> None:
        with contextlib.suppress(htp.QnnError):
            await execution

    await asyncio.gather(*(one(execution) for execution in executions))


def _timed_out(rng: random.Random, device: htp.Device, made: Executions) -> None:
    """``wait_for`` gives up and the loop closes; then the device goes on."""
    with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(_all(made), rng.choice((0.0, 0.001, 0.02))))


def _closed_at_once(rng: random.Random, device: htp.Device, made: Executions) -> None:
    """A loop is closed with tasks still in it."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(_all(made))
    for _ in range(rng.randint(1, 3)):
        loop.run_until_complete(asyncio.sleep(0))
    task.cancel()
    loop.close()


def _cancelled(rng: random.Random, device: htp.Device, made: Executions) -> None:
    """Tasks are cancelled while the device goes on."""

    async def body() -> None:
        tasks = [asyncio.create_task(_all([execution])) for execution in made]
        await asyncio.sleep(0)
        for task in tasks:
            if rng.random() < 0.5:
                task.cancel()
        release(device)
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(body())


def _many_loops(rng: random.Random, device: htp.Device, made: Executions) -> None:
    """The same executions are awaited by loops of several threads, of which some give up."""
    waits = [rng.choice((0.001, 0.05, 5.0)) for _ in range(3)]

    def wait(seconds: float) -> None:
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            asyncio.run(asyncio.wait_for(_all(made), seconds))

    threads = [threading.Thread(target=wait, args=(seconds,)) for seconds in waits]
    for thread in threads:
        thread.start()
    threads[0].join(0.02)
    release(device)
    for thread in threads:
        thread.join()


def _nobody(rng: random.Random, device: htp.Device, made: Executions) -> None:
    """Nobody waits; a few are cancelled."""
    for execution in made:
        if rng.random() < 0.5:
            execution.cancel()


_WAYS = (_timed_out, _closed_at_once, _cancelled, _many_loops, _nobody)


def _exit(execution: htp.Execution) -> None:
    raise SystemExit(3)


def _interrupt(execution: htp.Execution) -> None:
    raise KeyboardInterrupt


def _fail(execution: htp.Execution) -> None:
    raise RuntimeError("a callback of the attack")
