"""Executions on their caller's own thread, on a device of this process that has nothing else to do.

Where no other execution could come first or in between, a queue decides nothing, so none is used. As soon as the
loop has work, the rest of the execution is handed to it at the end of a step. From then on the scheduler knows the
execution as a job, and more urgent work comes first. Executions that are to be recorded, held or paced go the
usual way from the start.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from openhtp.core import status as st
from openhtp.core.errors import ExecutionError, QnnError, error_for_status
from openhtp.core.latches import Latch
from openhtp.device.answers import in_words
from openhtp.device.binding import bind_ports
from openhtp.device.contexts import DeviceApp, DeviceGraph
from openhtp.device.executions import BoundOrder
from openhtp.device.jobs import Reports
from openhtp.device.runner import SHORT_STEP_NS, WORTH_A_ROW, compute_row, computed
from openhtp.engine.protocol import NOT_IN_A_ROW, Arrays, LoadedProgram, Rehearsal, Run
from openhtp.rpc import frames

if TYPE_CHECKING:
    from openhtp.device.core import DeviceCore
    from openhtp.device.seat import Seat
    from openhtp.device.sessions import Session

log = logging.getLogger(__name__)


class DirectRun:
    """A loaded graph, bound to arrays."""

    __slots__ = ("_core", "_graph", "_loaded", "_run", "_seat", "_session", "_steps")

    def __init__(self, core: DeviceCore, seat: Seat, session: Session, graph: DeviceGraph, run: Run) -> None:
        self._core = core
        self._seat = seat
        self._session = session
        self._graph = graph
        self._loaded: LoadedProgram = graph.loaded
        self._run = run
        self._steps = range(graph.loaded.steps)

    def run(self, caller: object, *, queued: bool = False) -> bool:
        """Compute; False if the execution has to go the usual way. Raises the error of a step that failed.

        ``caller`` stands for this call; if it raises, the seat may still be the caller's, to be given up.
        ``queued``: the execution is asynchronous.
        """
        seat = self._seat
        if not sit_down(self._core, seat, self._session, self._graph, caller, may_wait=not queued):
            return False
        if self._graph.loaded is not self._loaded:
            seat.give_up(caller)
            return False
        if queued:
            self._graph.queued_started = True
        rest = self.compute(caller)
        seat.give_up(caller)
        if rest is not None:
            rest.wait()
        return True

    @property
    def is_short(self) -> bool:
        """Whether computing it takes less time than handing it to another thread."""
        return is_short(self._graph)

    def order(
        self, client_job: int, timeout_at: int, deadline_at: int, profile_level: int, *, waited: bool
    ) -> BoundOrder:
        """The execution as an order for the queue."""
        return BoundOrder(
            client_job, self._graph, self._run, len(self._steps), timeout_at, deadline_at, profile_level, waited
        )

    def compute(self, caller: object) -> HandedOver | None:
        """Compute step by step; ``caller`` sits, or is a guest. Returns the rest if it was handed to the loop."""
        compute, seat, last = self._run.step, self._seat, len(self._steps) - 1
        now, graph = self._core.clock.now, self._graph
        self._session.executions += 1
        graph.started = True
        seat.soon_free = not last and graph.step_ns < SHORT_STEP_NS
        seat.client = graph.number
        step = 0
        try:
            began_ns = now()
            for step in self._steps:
                compute(step)
                if step < last:
                    if seat.guests:
                        seat.entertain(caller)
                        seat.soon_free, seat.client = False, graph.number
                    if seat.wanted:
                        return self._hand_over(step + 1)
            if not last:
                graph.note_step(now() - began_ns)
        except QnnError:
            raise
        except Exception as error:
            raise ExecutionError(f"step {step} failed: {in_words(error)}") from error
        return None

    def _hand_over(self, done: int) -> HandedOver:
        core, session = self._core, self._session
        number = -core.new_number()  # clients use numbers above zero
        end = HandedOver(lambda: core.post(lambda: core.executions.cancel(session, number)))
        rest = RemainingSteps(self._run, done)
        order = BoundOrder(number, self._graph, rest, len(self._steps) - done, waited=True)
        self._seat.leave_over(lambda: core.executions.execute_bound(session, end, order))
        core.post(_nothing)  # the thread that wants the seat may have been interrupted before it woke the loop
        return end


class DataCopies(Protocol):
    """Copies the data of one execution to and from arrays of ours."""

    def fill(self) -> bool:
        """Copy the inputs; False if they are not as the graph takes them."""

    def drain(self) -> bool:
        """Copy the outputs; False if they cannot be written where they belong."""


# Binding arrays and handing the execution to another thread takes its caller about as long.
_COMPUTED_AT_ONCE_NS = 250_000


class BorrowedRun(DirectRun):
    """A loaded graph on the arrays of its rehearsal, to and from which the data of an execution are copied.

    Small data are copied in less time than arrays are bound, and the next execution may have other ones.
    """

    __slots__ = ("arrays",)

    def __init__(
        self, core: DeviceCore, seat: Seat, session: Session, graph: DeviceGraph, rehearsal: Rehearsal
    ) -> None:
        super().__init__(core, seat, session, graph, rehearsal.run)
        self.arrays = rehearsal.arrays

    @property
    def is_short(self) -> bool:
        """Whether computing it takes its caller less time than binding other arrays would."""
        return self._graph.steps == 1 and self._graph.expected_ns < _COMPUTED_AT_ONCE_NS

    def run_on(self, copies: DataCopies, caller: object, *, queued: bool = False) -> bool:
        """As ``run``. The holder of the seat has the arrays; the only step is never handed over."""
        seat = self._seat
        if not sit_down(self._core, seat, self._session, self._graph, caller, may_wait=not queued):
            return False
        done = self._graph.loaded is self._loaded and copies.fill()
        if done:
            if queued:
                self._graph.queued_started = True
            self.compute(caller)
            done = copies.drain()
        seat.give_up(caller)
        return done


# A longer one gains nothing in the row, and a more urgent one that comes meanwhile would have to wait until it has
# lined up.
LONGEST_IN_ROW_NS = 3_000_000


class OrderReports(Reports, Protocol):
    """Takes the news of orders: of their ends and, before that, when these are expected."""

    def expected(self, job: int, at_ns: int) -> None:
        """An execution has begun, and will probably be over then."""


class OrderEntry:
    """An order in the row: where its end is reported, and how many of its steps are computed."""

    __slots__ = ("done", "order", "outlet", "received_ns", "session")

    def __init__(self, session: Session, outlet: OrderReports, order: BoundOrder, received_ns: int) -> None:
        self.session = session
        self.outlet = outlet
        self.order = order
        self.received_ns = received_ns
        self.done = 0

    def rest(self) -> BoundOrder:
        """What is left to be computed, as an order."""
        order, done = self.order, self.done
        if not done:
            return order
        return replace(order, run=RemainingSteps(order.run, done), steps=order.steps - done)


class OrderRow:
    """Orders of clients in this process, computed by the loop while nothing else is asked for than that.

    Where orders of one priority are all that is under way, the scheduler would run them in the order of their
    arrival. That is what the row does, and it looks at the inbox as often as between other steps. As soon as
    anything else is asked for, the rest of them line up with the scheduler, before it. All methods belong to the
    loop's thread.
    """

    def __init__(self, core: DeviceCore, seat: Seat) -> None:
        self._core = core
        self._seat = seat
        self._entries: deque[OrderEntry] = deque()
        # Where several graphs may run at once, or a library computes, there is no row.
        self._is_open = core.library is None and core.loop.scheduler.resources.graphs_at_once == 1
        core.executions.line_up = self.line_up

    def take(self, session: Session, outlet: OrderReports, order: BoundOrder) -> None:
        """Take an order: into the row if it may go there, to the scheduler otherwise."""
        core, entries = self._core, self._entries
        if not self._may_join(session, order):
            core.executions.execute_bound(session, outlet, order)
            return
        entries.append(OrderEntry(session, outlet, order, core.clock.now()))
        if len(entries) == 1:
            core.loop.later(self._run)

    def _may_join(self, session: Session, order: BoundOrder) -> bool:
        core, graph = self._core, order.graph
        if (
            not self._is_open
            or core.executions.jobs
            or order.timeout_at
            or order.deadline_at
            or order.profile_level
            or graph.last_run_ns > LONGEST_IN_ROW_NS
            or not is_free(core, session, graph)
        ):
            return False
        return not self._entries or self._priority(self._entries[0].order.graph) == self._priority(graph)

    def _priority(self, graph: DeviceGraph) -> int:
        return self._core.loop.scheduler.clients[graph.number].demand.priority

    def line_up(self) -> None:
        """Give what is left of the row to the scheduler, in order: something else is asked for.

        For clients that have gone nothing is left to be done.
        """
        if not self._entries:
            return
        entries, self._entries = self._entries, deque()
        for entry in entries:
            if not entry.session.closed:
                self._core.executions.execute_bound(entry.session, entry.outlet, entry.rest())

    def _run(self) -> None:
        """Compute the row. Callers that come meanwhile do not wait for the seat: they queue."""
        self._seat.soon_free = False
        try:
            self._compute_all()
        finally:
            self._seat.soon_free = True

    def _compute_all(self) -> None:
        core = self._core
        while self._entries:
            entry = self._entries[0]
            try:
                is_over = self._compute(entry)
            except Exception as error:
                log.exception("execution %d of session %d", entry.order.client_job, entry.session.number)
                if self._entries and self._entries[0] is entry:
                    self._entries.popleft()
                core.executions.on_broken(entry.session, error)
                is_over = True
            if not is_over:
                return
            if self._entries:
                # A thread that waits for that may have been woken on this core: let it run first.
                os.sched_yield()
                core.loop.look(core.clock.now())

    def _compute(self, entry: OrderEntry) -> bool:
        """Compute an order and report its end; False if the scheduler has the rest of it."""
        core, order, now = self._core, entry.order, self._core.clock.now
        graph = order.graph
        if not is_free(core, entry.session, graph):
            self.line_up()
            return False
        graph.started = True
        if not order.waited:
            graph.queued_started = True
        began_ns = ended_ns = now()
        if graph.last_run_ns:
            entry.outlet.expected(order.client_job, began_ns + graph.last_run_ns)
        failure: QnnError | None = None
        while True:
            step_began_ns, done = ended_ns, NOT_IN_A_ROW
            if entry.done and order.steps - entry.done >= WORTH_A_ROW:
                done = compute_row(order.run, entry.done, order.steps, core.loop.watch(ended_ns))
            if done.steps:
                entry.done, step_began_ns, ended_ns = entry.done + done.steps, done.began_ns, done.ended_ns
            else:
                failure = computed(order.run, entry.done)
                entry.done, ended_ns = entry.done + 1, now()
            if failure is not None or entry.done == order.steps:
                break
            core.loop.look(ended_ns)
            if entry.session.closed:
                self.line_up()
            if not self._entries or self._entries[0] is not entry:
                return False
        self._entries.popleft()
        entry.session.executions += 1
        graph.note_step(ended_ns - step_began_ns)
        graph.last_run_ns = ended_ns - began_ns
        core.power.idle_since[graph.core] = ended_ns
        core.executions.told = True
        code = st.QNN_SUCCESS.code if failure is None else failure.code
        record = frames.Record(order.client_job, code, 0, entry.received_ns, began_ns, ended_ns)
        if failure is None:
            entry.outlet.report(record)
        else:
            entry.outlet.report_failure(record, failure.message)
        return True


def _nothing() -> None:
    """Do nothing: posting this only wakes the loop."""


def is_short(graph: DeviceGraph | DeviceApp) -> bool:
    """Whether computing an execution takes less time than handing it to another thread."""
    return graph.steps == 1 and graph.expected_ns < SHORT_STEP_NS


def sit_down(
    core: DeviceCore, seat: Seat, session: Session, graph: DeviceGraph, caller: object, *, may_wait: bool
) -> bool:
    """Take the seat if an execution may run at once, with nothing to wait for or to heed.

    With ``may_wait``, the caller may also be the guest of a less urgent caller.
    """
    if core.executions.jobs:
        return False
    if not seat.try_take(caller):
        is_more_urgent = core.loop.scheduler.precedes
        if not (may_wait and is_more_urgent(graph.number, seat.client, core.clock.now()) and seat.visit(caller)):
            return False
    if not core.executions.jobs and is_free(core, session, graph):
        return True
    seat.give_up(caller)
    return False


def is_free(core: DeviceCore, session: Session, graph: DeviceGraph) -> bool:
    """Whether nothing holds up, watches or changes the executions of a graph."""
    return not (
        core.recording.enabled
        or core.loop.held
        or session.staged
        or session.held
        or session.closed
        or graph.fault is not None
        or graph.pace is not None
        or graph.switch is not None
        or graph.calls_user_code
        or session.graphs.get(graph.number) is not graph
    )


class RemainingSteps:
    """A run whose first steps are computed already."""

    __slots__ = ("_done", "_run")

    def __init__(self, run: Run, done: int) -> None:
        self._run = run
        self._done = done

    def step(self, index: int) -> None:
        """Compute one of the steps that are left."""
        self._run.step(self._done + index)


class HandedOver:
    """The end of an execution that its caller began and the loop continues. The caller waits for it here."""

    __slots__ = ("_cancel", "_failure", "_over")

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._failure: QnnError | None = None
        self._over = Latch()

    def report(self, record: frames.Record, extra: bytes = b"") -> None:
        """The execution is over; its status tells whether it was ended early."""
        if record.status:
            self._failure = error_for_status(st.for_code(record.status), "the execution ended early")
        self._over.unlock()

    def report_failure(self, record: frames.Record, text: str) -> None:
        """The execution is over, and failed."""
        self._failure = error_for_status(st.for_code(record.status), text)
        self._over.unlock()

    def wait(self) -> None:
        """Wait for the end; raises a failure. An interrupted caller still waits, for the end of a step."""
        interrupt: BaseException | None = None
        while not self._over.is_open:
            try:
                self._over.wait()
            except BaseException as error:  # of a signal handler: arrays must not be left while they are written
                interrupt = error
                self._cancel()
        if interrupt is not None:
            raise interrupt
        if self._failure is not None:
            raise self._failure


def direct_run(core: DeviceCore, seat: Seat, session: Session, number: int, arrays: Arrays) -> DirectRun | None:
    """Bind a graph to arrays; None for a graph whose data may be exchanged or that is not always loaded.

    None, too, for a graph that calls a user's functions: these are never called on the loop's seat.
    """
    graph = session.graphs.get(number)
    if type(graph) is not DeviceGraph or graph.switch is not None or graph.calls_user_code:
        return None
    return DirectRun(core, seat, session, graph, graph.loaded.bind(arrays))


def borrowed_run(core: DeviceCore, seat: Seat, session: Session, number: int) -> BorrowedRun | None:
    """A graph on the arrays of its rehearsal; None for one that was not rehearsed, or as in ``direct_run``."""
    graph = session.graphs.get(number)
    if type(graph) is not DeviceGraph or graph.switch is not None or graph.rehearsal is None:
        return None
    return BorrowedRun(core, seat, session, graph, graph.rehearsal)


def run_frame(
    core: DeviceCore, seat: Seat, session: Session, frame: bytes, caller: object, *, if_short: bool = False
) -> bool:
    """Compute what an EXECUTE frame asks for; False if it has to go the usual way. Raises a step's error.

    ``if_short`` skips executions that take longer than handing them to another thread. ``caller`` stands for
    this call; if it raises, the seat may still be the caller's, to be given up.
    """
    _, flags, count, number, batch, level, _, timeout_at, _ = frames.EXECUTE_HEAD.unpack_from(frame)
    graph = session.graphs.get(number)
    if not isinstance(graph, DeviceGraph) or batch != 1 or level or timeout_at:
        return False
    if if_short and not is_short(graph):
        return False
    if not sit_down(core, seat, session, graph, caller, may_wait=not if_short):
        return False
    key, with_dims = frame[frames.EXECUTE_HEAD.size :], bool(flags & frames.FLAG_DIMS)
    runs = graph.take_runs(
        key, lambda: bind_ports(graph, session.memories, key, count, batch, with_dims=with_dims)
    )
    if if_short:  # it is asynchronous
        graph.queued_started = True
    rest = DirectRun(core, seat, session, graph, runs[0]).compute(caller)
    if rest is None:
        graph.give_back(key, runs)
    seat.give_up(caller)
    if rest is not None:
        rest.wait()
    return True
