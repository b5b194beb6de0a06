"""A device on a virtual clock, in the client's own process: its loop turns while a thread waits for something."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection, Iterator
from typing import Any

from openhtp.core.errors import QnnError
from openhtp.core.locks import make_lock
from openhtp.core.threads import finish
from openhtp.device.answers import Answer
from openhtp.device.core import DeviceCore
from openhtp.device.jobs import Outlet
from openhtp.device.tasks import Task
from openhtp.program.packed import PackedGraph
from openhtp.rpc import channel, messages as ms
from openhtp.rpc.shm import SharedBuffer
from openhtp.runtime.calls.data_order import DataOrder, run_task
from openhtp.runtime.calls.execution import Execution, complete_from, leave
from openhtp.runtime.calls.long_call import CallStop, do_task
from openhtp.runtime.calls.queue import PlaceHolder, Places
from openhtp.runtime.links.link import HandedGraph, Interrupted, Sent, Undo, raise_reply


class LocalLink:
    """Runs the device's loop on the thread that waits."""

    def __init__(self, core: DeviceCore) -> None:
        self.pid = os.getpid()
        self._foreign = False
        self._core = core
        self._lock = make_lock("local", reentrant=True)
        self._jobs = itertools.count(1)
        self._pending: dict[int, Execution] = {}
        self.data_order = DataOrder(in_order=core.loop.scheduler.resources.graphs_at_once == 1, do=run_task)
        self._session = core.open_session(pid=self.pid, label="in process")
        self._outlet = Outlet(self._on_news)

    def now(self) -> int:
        """The device's time."""
        return self._core.clock.now()

    def request(
        self,
        message: ms.Request,
        descriptors: tuple[int, ...] = (),
        undo: Undo | None = None,
        stop: CallStop | None = None,
    ) -> ms.Reply:
        """Ask the core directly. Descriptors are duplicated, as the core owns those that it gets."""
        if stop is None:
            return self._ask(message, descriptors)[0]
        owned = [os.dup(fd) for fd in descriptors]
        with self._lock:
            answer = self._core.request(self._session, message, owned)
        if not isinstance(answer, Task):
            assert isinstance(answer, ms.Reply)
            return raise_reply(answer)
        reply = do_task(answer, self._conclude, stop, lambda late: self._take_back(late, undo))
        return raise_reply(reply)

    def _run_task(self, task: Task[Any]) -> Answer:
        """Run a task and wait for it. Tasks use threads of their own and must come to their end."""

        def give_up(_: object) -> None:
            task.cancel()
            self._conclude(task)

        finish(task.run, name="openhtp-task", discard=give_up)
        return task.conclude()

    def _conclude(self, task: Task[Any]) -> ms.Reply:
        with self._lock:
            reply = task.conclude()
        assert isinstance(reply, ms.Reply)
        return reply

    def _take_back(self, reply: ms.Reply, undo: Undo | None) -> None:
        if undo is not None and not reply.error:
            self.tell(undo(reply))

    def _ask(self, message: ms.Request, descriptors: tuple[int, ...] = ()) -> tuple[ms.Reply, bytes]:
        """The reply, and the data that would have come beside it."""
        owned = [os.dup(fd) for fd in descriptors]
        try:
            with self._lock:
                answer = self._core.request(self._session, message, owned)
                if isinstance(answer, Task):
                    answer = self._run_task(answer)
        finally:
            channel.close_all(owned)
        if isinstance(answer, SharedBuffer):
            with contextlib.closing(answer):
                return ms.Reply(), bytes(answer.view)
        return raise_reply(answer), b""

    @contextlib.contextmanager
    def handing_over(self, packed: PackedGraph) -> Iterator[HandedGraph]:
        """Lend the graph as it is: the core reads the memory of this process."""
        with self._session.lending(packed) as number:
            yield HandedGraph(packed.nbytes, lent=number)

    def tell(self, message: ms.Request) -> None:
        """Ask for something whose outcome does not matter."""
        with contextlib.suppress(QnnError):
            self.request(message)

    def set_polling(self, polling_us: int | None, adaptive_us: int) -> None:
        """A thread that waits here runs the device itself: there is nothing to poll for."""

    def next_job(self) -> int:
        """A job number for an execution."""
        return next(self._jobs)

    def submit(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Give an execution to the core."""
        with self._lock:
            self._pending[execution.job] = execution
            self._core.executions.execute(self._session, self._outlet, frame)
        sent(execution.job)

    def forward(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Give an execution that was delayed to the core, once that is done with the one that has just ended."""
        self._core.loop.later(lambda: self.submit(execution, frame, sent))

    def run(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Give an execution to the core and wait for its end."""
        self.submit(execution, frame, sent)
        self.wait_for(execution, None)

    def run_here(self, execution: Execution, frame: bytes, *, if_short: bool = False) -> bool:
        """Every execution is queued, as time only moves with the loop."""
        return False

    def shortcut(self, graph: int, arrays: object) -> None:
        """Every execution is queued."""

    def rehearsed(self, graph: int) -> None:
        """Every execution is queued."""

    def cancel(self, job: int) -> None:
        """Ask for an execution's early end."""
        if self.data_order.cancel(job):
            return
        with self._lock:
            self._core.executions.cancel(self._session, job)

    def awaits(self, execution: Execution, running: Collection[int]) -> bool:
        """Whether an execution was sent and will soon be over: its results may just be copied."""
        return execution.job in self._pending and execution.job not in running

    def wait_for(self, execution: Execution, timeout: float | None) -> bool:
        """Run the loop until the execution is over, the time has run out, or nothing more will happen."""
        until_ns = None if timeout is None else self.now() + int(timeout * 1e9)
        while not execution.done():
            if until_ns is not None and self.now() >= until_ns:
                return False
            with self._lock:
                if not execution.done() and not self._core.loop.turn(self, block=False):
                    return execution.done()
        return True

    def take_place(
        self, places: Places, holder: PlaceHolder, until_ns: int | None, interrupted: Interrupted
    ) -> None:
        """Take a place in a context's queue, running the loop while it is full."""
        while not places.try_take(holder):
            error = interrupted()
            if error is not None:
                raise error
            with self._lock:
                self._core.loop.turn(self, block=False)

    def settle(self, execution: Execution) -> bool:
        """End an execution that may have reached the core before an interrupt came."""
        if self.data_order.cancel(execution.job):
            return True
        with self._lock:
            if execution.job not in self._pending:
                return False
            if execution.job in self._session.jobs:
                self._core.executions.cancel(self._session, execution.job)
                self.wait_for(execution, None)
            return execution.done()

    def run_loop(self, until_ns: int | None = None) -> None:
        """Run the loop until nothing is left to do, or until a time."""
        with self._lock:
            while (until_ns is None or self.now() < until_ns) and self._core.loop.turn(self, block=False):
                pass

    def fetch(self, message: ms.Request, descriptors: tuple[int, ...] = ()) -> bytes:
        """Ask for something that would come in shared memory."""
        return self._ask(message, descriptors)[1]

    def close(self) -> None:
        """End the session; pending executions end with it."""
        if self._foreign:
            return
        with self._lock:
            self._core.close_session(self._session)
            self._pending.clear()

    def leave_to_parent(self, error: QnnError) -> None:
        """In the child of a fork: leave the core alone, as another thread may have been in the middle of it."""
        self._foreign = True
        self._lock = make_lock("local", reentrant=True)
        pending, self._pending = self._pending, {}
        for execution in (*pending.values(), *self.data_order.take_all()):
            leave(execution, error)

    # The loop's inbox: requests come by direct calls, so there is nothing to wait for.

    def poll(self, timeout_ns: int | None) -> None:
        """Nothing comes in here."""

    def flush(self) -> None:
        """Completions are handed over at once."""

    def _on_news(self) -> None:
        for packet in self._outlet.packets():
            complete_from(packet, self._pending)
