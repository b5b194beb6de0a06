"""The way to an NPU on a thread of this process.

Requests go the same way as to a device process. Executions are handed to the loop without a socket in between, and
without a copy if their arrays can be used where they lie. A synchronous execution is computed by its caller if the
NPU has nothing else to do.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy.typing as npt

from openhtp.core import status as st, tidying
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.device.config import DeviceConfig
from openhtp.device.direct import (
    BorrowedRun,
    DataCopies,
    DirectRun,
    borrowed_run,
    direct_run,
    is_short,
    run_frame,
)
from openhtp.device.sessions import Session
from openhtp.device.thread_host import ThreadHost
from openhtp.program.packed import PackedGraph
from openhtp.rpc.frames import Record
from openhtp.runtime.calls.call import Call
from openhtp.runtime.calls.execution import Execution, block, complete, complete_from, complete_here, expect_end
from openhtp.runtime.links.device_process import DeviceOptions
from openhtp.runtime.links.link import HandedGraph, Link, Sent
from openhtp.runtime.links.rpc_link import RpcLink

_lock = threading.Lock()
# By chip and number: the NPUs that clients of this process share; and the number of clients of each NPU.
_shared: dict[tuple[str, int], ThreadHost] = {}
_clients: dict[ThreadHost, int] = {}

# How long a caller waits for the executions before it: a few short ones.
_MOMENT_S = 0.001


class ThreadLink(RpcLink):
    """One client of an NPU of this process."""

    def __init__(self, options: DeviceOptions, on_lost: Callable[[Link], None], *, shared: bool) -> None:
        self._shared = shared
        super().__init__(options, on_lost, shares_budget=shared)
        self._core = self.lease.host.core
        self._reports = HandedReports(self._pending)

    def _reach(self) -> tuple[socket.socket, NpuLease]:
        self.lease = NpuLease(self._options.config, shared=self._shared)
        return self.lease.connect(), self.lease

    @property
    def _core_session(self) -> Session | None:
        """This client's session on the NPU; None once it is closed."""
        return self._core.sessions.get(self.session)

    @contextlib.contextmanager
    def handing_over(self, packed: PackedGraph) -> Iterator[HandedGraph]:
        """Lend the graph as it is: the NPU reads the memory of this process."""
        session = self._core_session
        if session is None:
            raise self._gone()
        with session.lending(packed) as number:
            yield HandedGraph(packed.nbytes, lent=number)

    # Executions

    def submit(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Hand an execution to the loop, perhaps on the loop's own thread."""
        executions = self._core.executions
        session = self._take_on(execution)
        self._core.post(lambda: executions.execute_handed(session, self._reports, frame))
        sent(execution.job)

    def submit_bound(self, execution: Execution, direct: DirectRun, call: Call, times: tuple[int, int]) -> None:
        """Submit an execution on the client's arrays; ``times`` has its timeout and its profiling level."""
        row, (timeout_at, level) = self.lease.host.row, times
        if (
            not call.synchronous  # a synchronous one has been refused here before
            and direct.is_short
            and not timeout_at
            and not level
            and call.signal is None
            and self._compute(execution, direct.run)
        ):
            return
        order = direct.order(execution.job, timeout_at, call.deadline_at, level, waited=call.synchronous)
        session = self._take_on(execution)
        self._core.post(lambda: row.take(session, self._reports, order))
        call.sent(execution.job)

    def _take_on(self, execution: Execution) -> Session:
        with self._send_lock:
            session = self._core_session
            if self._lost or session is None:
                raise self._gone()
            self._pending[execution.job] = execution
        return session

    def run(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Hand an execution, which could not be computed here, to the loop and wait for its end."""
        self.submit(execution, frame, sent)
        block(execution, None)

    def run_here(self, execution: Execution, frame: bytes, *, if_short: bool = False) -> bool:
        """Compute an execution on this thread, if the NPU is idle; with ``if_short``, only a short one."""
        session = self._core_session
        if session is None:
            return False
        core, seat = self._core, self.lease.host.seat
        return self._compute(
            execution, lambda caller: run_frame(core, seat, session, frame, caller, if_short=if_short)
        )

    def _compute(self, execution: Execution, run: Callable[[object], bool]) -> bool:
        """Complete an execution that ``run`` computes on this thread; False if ``run`` declines."""
        if self._pending or self.data_order.delayed:
            return False
        began_ns, code, text = self.now(), 0, ""
        try:
            if not self.sitting(run):
                return False
        except QnnError as error:
            code, text = error.code, error.message
        record = Record(execution.job, code, received_ns=began_ns, started_ns=began_ns, finished_ns=self.now())
        complete_here(execution, record, text)
        return True

    def shortcut(self, graph: int, arrays: Mapping[str, npt.NDArray[Any]]) -> BoundRun | None:
        """Use arrays where they lie."""
        session = self._core_session
        if session is None:
            return None
        direct = direct_run(self._core, self.lease.host.seat, session, graph, arrays)
        return None if direct is None else BoundRun(self, direct)

    def rehearsed(self, graph: int) -> CopyingRun | None:
        """Use what the graph was rehearsed with."""
        session = self._core_session
        direct = None if session is None else borrowed_run(self._core, self.lease.host.seat, session, graph)
        return None if direct is None else CopyingRun(self, direct)

    @property
    def is_clear(self) -> bool:
        """Whether no execution is pending: one that is computed at once would overtake it."""
        return not self._pending and not self.data_order.delayed

    def is_soon_clear(self) -> bool:
        """Whether the queue is clear, after a short wait if the NPU has only short executions to do.

        A client that goes on queueing short executions behind others would never get ahead of the loop again, and
        each of them costs more to hand over than to compute.
        """
        if self.is_clear:
            return True
        if not all(is_short(job.graph) for job in list(self._core.executions.jobs.values())):
            return False
        ahead = list(self._pending.values())
        if not all(map(self._is_short, ahead)):
            return False
        return (not ahead or block(ahead[-1], _MOMENT_S)) and self.is_clear

    def _is_short(self, execution: Execution) -> bool:
        """Whether a pending execution is, which the loop may not have taken in yet: then it has no job there."""
        session, number = self._core_session, execution.graph_number
        graph = None if session is None or number is None else session.graphs.get(number)
        return execution.done() or (graph is not None and is_short(graph))

    def sitting(self, run: Callable[[object], bool]) -> bool:
        """Let ``run`` compute in the loop's seat. The seat is given up whatever ``run`` raises."""
        caller, seat = object(), self.lease.host.seat
        try:
            return run(caller)
        except BaseException as error:
            tidying.post((seat.give_up, (caller,)))
            if isinstance(error, QnnError):
                seat.give_up(caller)  # now, as the next call may follow at once
            raise

    def awaits(self, execution: Execution, running: Collection[int]) -> bool:
        """Whether an execution was handed over and is not over: the NPU computes on its caller's arrays."""
        return execution.job in self._pending

    def cancel(self, job: int) -> None:
        """Ask for an execution's early end."""
        if self.data_order.cancel(job):
            return
        session = self._core_session
        if session is not None:
            self._core.post(lambda: self._core.executions.cancel(session, job))

    def settle(self, execution: Execution) -> bool:
        """End an execution that may have been handed over before an interrupt came."""
        job, session = execution.job, self._core_session
        if self.data_order.cancel(job):
            return True
        if job not in self._pending:
            return False

        def end() -> None:
            """Runs after the execution if that was handed over; otherwise the execution ends here and now."""
            self._core.executions.line_up()
            if session is not None and job in session.jobs:
                self._core.executions.cancel(session, job)
            elif job in self._pending:
                now = self.now()
                record = Record.of_moment(job, st.QNN_GRAPH_ERROR_ABORTED.code, now)
                self._reports.report_failure(record, "interrupted before it was handed over")

        self._core.post(end)
        return True


class BoundRun:
    """A graph bound to arrays of the client, as its calls use it."""

    __slots__ = ("_direct", "_link")

    def __init__(self, link: ThreadLink, direct: DirectRun) -> None:
        self._link = link
        self._direct = direct

    @property
    def is_short(self) -> bool:
        """Whether computing it is expected to take less time than queueing it."""
        return self._direct.is_short and self._link.is_soon_clear()

    def run(self) -> bool:
        """Compute on this thread; False if it has to go through the queue."""
        link = self._link
        return not link._pending and not link.data_order.delayed and link.sitting(self._direct.run)

    def run_queued(self) -> bool:
        """Compute an asynchronous execution on this thread; False if it has to go through the queue."""
        link, direct = self._link, self._direct
        return link.is_clear and link.sitting(lambda caller: direct.run(caller, queued=True))

    def submit(self, execution: Execution, call: Call, timeout_at: int, profile_level: int) -> None:
        """Queue an execution."""
        self._link.submit_bound(execution, self._direct, call, (timeout_at, profile_level))


class CopyingRun:
    """A graph that was rehearsed, as calls use it whose data are copied."""

    __slots__ = ("_direct", "_link", "arrays")

    def __init__(self, link: ThreadLink, direct: BorrowedRun) -> None:
        self._link = link
        self._direct = direct
        self.arrays = direct.arrays

    @property
    def is_short(self) -> bool:
        """Whether computing it is expected to take less time than queueing it."""
        return self._direct.is_short and self._link.is_soon_clear()

    def run(self, copies: DataCopies, *, queued: bool = False) -> bool:
        """Compute on this thread; False if it has to go another way. ``queued``: it is asynchronous."""
        link, direct = self._link, self._direct
        return link.is_clear and link.sitting(lambda caller: direct.run_on(copies, caller, queued=queued))


class HandedReports:
    """Receives the reports of handed-over executions and completes them at once, on the loop's thread."""

    __slots__ = ("_pending",)

    def __init__(self, pending: dict[int, Execution]) -> None:
        self._pending = pending

    def expected(self, job: int, at_ns: int) -> None:
        """An execution has begun, and will probably be over then."""
        execution = self._pending.get(job)
        if execution is not None:
            expect_end(execution, at_ns)

    def report(self, record: Record, extra: bytes = b"") -> None:
        """An execution is over; ``extra`` is its profile."""
        if extra:
            complete_from(extra, self._pending)
        self._complete(record, "")

    def report_failure(self, record: Record, text: str) -> None:
        """An execution failed."""
        self._complete(record, text)

    def _complete(self, record: Record, text: str) -> None:
        execution = self._pending.get(record.job)
        if execution is not None:
            complete(execution, record, text)
        self._pending.pop(record.job, None)


class NpuLease:
    """A client's share in an NPU of this process. The NPU ends with its last lease."""

    def __init__(self, config: DeviceConfig, *, shared: bool) -> None:
        with _lock:
            self.host = _join(config) if shared else _begin(config)
            _clients[self.host] += 1
        self._given_back = False

    def connect(self) -> socket.socket:
        """A control socket to the NPU."""
        return self.host.connect()

    def last_words(self) -> str:
        """A thread leaves no last words."""
        return ""

    def end(self) -> None:
        """The client has gone. Twice does nothing."""
        with _lock:
            if self._given_back:
                return
            self._given_back = True
            _clients[self.host] -= 1
            last = not _clients[self.host]
            if last:
                del _clients[self.host]
                chip = _chip(self.host.config)
                if _shared.get(chip) is self.host:
                    del _shared[chip]
        if last:
            self.host.stop()

    def leave_to_parent(self) -> None:
        """In the child of a fork the NPU is the parent's."""
        self._given_back = True


def _begin(config: DeviceConfig, *, shared: bool = False) -> ThreadHost:
    host = ThreadHost(config, shared=shared)
    _clients[host] = 0
    return host


def _chip(config: DeviceConfig) -> tuple[str, int]:
    return config.soc, config.device_id


def _join(config: DeviceConfig) -> ThreadHost:
    chip = _chip(config)
    host = _shared.get(chip)
    if host is None:
        host = _shared[chip] = _begin(config, shared=True)
    elif host.config != config:
        raise InvalidArgument(
            f"the {config.soc} that this process shares has other settings ({host.config}, not {config});"
            " use the same ones, or npu='private'",
            st.QNN_DEVICE_ERROR_INVALID_CONFIG,
        )
    return host


def _leave_to_parent() -> None:
    """In the child of a fork none of the threads exists, so devices begin anew."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    for host in list(_clients):
        host.leave_to_parent()
    _shared.clear()
    _clients.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
