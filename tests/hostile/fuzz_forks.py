"""Children made by fork and by multiprocessing: the parent's handles go on, the child's are refused."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import math
import multiprocessing
import os
import random
import select
import signal
import sys
import traceback
from collections.abc import Callable

import openhtp as htp
from tests.conftest import relu_graph
from tests.hostile.clerk import Clerk
from tests.hostile.leaks import Holdings
from tests.hostile.probe import Neighbour, check_on_clean_context, is_right, sample
from tests.hostile.tally import LONGEST_CALL, Budget, Watch

SHORT = 4
"""Rounds of the short form."""

_PATIENCE = 150.0  # longer than a call may take
"""Seconds in which a child must have started, worked and ended."""


class _Parent:
    """What the parent had when it forked."""

    def __init__(self, backend: htp.Backend) -> None:
        self.backend = backend
        self.device = backend.create_device()
        self.neighbour = Neighbour(self.device)
        self.clerk = Clerk()

    def queue(self, rng: random.Random) -> None:
        for number in range(rng.randint(0, 15)):
            ticket = self.clerk.ticket()
            execution = self.neighbour.graph.execute_async(
                {"x": sample(number)}, notify=self.clerk.notify, notify_param=ticket
            )
            self.clerk.accepted(ticket, execution)


def attack(rng: random.Random, budget: Budget, watch: Watch) -> None:
    """One child after the other, with executions under way."""
    with htp.Backend() as warm:
        Neighbour(warm.create_device())
    multiprocessing.get_context("spawn").Process(target=int).start()  # its helper process stays
    for child in multiprocessing.active_children():
        child.join()
    holdings = Holdings()
    with htp.Backend() as backend:
        parent = _Parent(backend)
        while budget:
            way = rng.choice(_WAYS)
            with watch.call(way.__name__, limit=2 * _PATIENCE):
                parent.queue(rng)
                way(parent, watch)
            parent.clerk.check(watch)
            parent.neighbour.check(watch)
            check_on_clean_context(parent.device, watch)
            if parent.device.restarts:
                watch.found("wrong", f"the parent lost its device after {way.__name__}")
                parent = _Parent(backend)
    holdings.check(watch)


def _forked(watch: Watch, work: Callable[[], object]) -> None:
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            # Not by faulthandler's own clock: its thread is the parent's, and it would be waited for.
            faulthandler.register(signal.SIGALRM, chain=True)
            signal.alarm(math.ceil(LONGEST_CALL))
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            atexit._run_exitfuncs()
            os._exit(code)
    _wait(watch, pid, work.__name__)


def _wait(watch: Watch, pid: int, name: str) -> None:
    life = os.pidfd_open(pid)
    ended = bool(select.select([life], [], [], _PATIENCE)[0])
    os.close(life)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        watch.found("hang", f"the child of {name} did not end")
    _, status = os.waitpid(pid, 0)
    if ended and status:
        watch.found("wrong", f"the child of {name} ended with {os.waitstatus_to_exitcode(status)}")


def _child_exits(parent: _Parent, watch: Watch) -> None:
    def work() -> None:
        pass

    _forked(watch, work)


def _child_uses_handles(parent: _Parent, watch: Watch) -> None:
    def work() -> None:
        graph = parent.neighbour.graph
        for call in (
            lambda: graph.execute({"x": sample(1)}),
            lambda: graph.execute_async({"x": sample(1)}),
            parent.device.info,
            parent.device.create_context,
            lambda: relu_graph(parent.neighbour.context, "new"),
        ):
            try:
                call()
            except htp.QnnError:
                continue
            raise AssertionError(f"the parent's handle works in a child: {call}")

    _forked(watch, work)


def _child_frees_all(parent: _Parent, watch: Watch) -> None:
    def work() -> None:
        for item in (parent.neighbour.context, parent.device, parent.backend):
            with contextlib.suppress(htp.QnnError):
                item.free()

    _forked(watch, work)


def _child_has_its_own(parent: _Parent, watch: Watch) -> None:
    _forked(watch, own_backend)


def own_backend() -> None:
    """What a child may always do."""
    with htp.Backend() as backend:
        graph = relu_graph(backend.create_device().create_context())
        assert is_right(7, graph.execute_async({"x": sample(7)}).result(LONGEST_CALL))


def _child_forks_again(parent: _Parent, watch: Watch) -> None:
    def work() -> None:
        grandchild = os.fork()
        if grandchild == 0:
            atexit._run_exitfuncs()
            os._exit(0)
        os.waitpid(grandchild, 0)

    _forked(watch, work)


def _multiprocessing(parent: _Parent, watch: Watch, method: str) -> None:
    process = multiprocessing.get_context(method).Process(target=own_backend)  # type: ignore[attr-defined]
    process.start()
    process.join(_PATIENCE)
    if process.exitcode is None:
        process.kill()
        process.join()
        watch.found("hang", f"a process of multiprocessing ({method}) did not end")
    elif process.exitcode:
        watch.found("wrong", f"a process of multiprocessing ({method}) ended with {process.exitcode}")
    process.close()


def _multiprocessing_fork(parent: _Parent, watch: Watch) -> None:
    _multiprocessing(parent, watch, "fork")


def _multiprocessing_spawn(parent: _Parent, watch: Watch) -> None:
    _multiprocessing(parent, watch, "spawn")


_WAYS = (
    _child_exits,
    _child_uses_handles,
    _child_frees_all,
    _child_has_its_own,
    _child_forks_again,
    _multiprocessing_fork,
    _multiprocessing_spawn,
)
