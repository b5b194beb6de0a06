"""Takes executions in: reads frames from clients' ducts, a limited number from each client in turn.

Short executions of one graph are computed in a row without the scheduler while nothing else is under way.
Where no other execution could come first or in between, a queue decides nothing, and for a short graph the
queue costs more than the computing. They wait in the row, in the order of their arrival, and the loop looks
at its inbox as often as between other steps. As soon as anything else is asked for, the rest of them line up
with the scheduler, before it: an execution of another graph, one with a timeout or a profile, a cancel, a
request.

Once an execution was computed there, the C side of the engine reads and computes further ones like it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from openhtp.core import status as st
from openhtp.core.errors import QnnError
from openhtp.device.answers import unexpected
from openhtp.device.binding import bind_ports
from openhtp.device.connection import Connection, ServedDuct
from openhtp.device.contexts import DeviceGraph
from openhtp.device.direct import is_free, is_short
from openhtp.device.executions import Executions
from openhtp.device.jobs import Reports
from openhtp.device.loop import POLL_INTERVAL_NS, SchedulerFailed
from openhtp.device.outbox import RECORDS_PER_PACKET
from openhtp.device.runner import computed
from openhtp.device.sessions import Session
from openhtp.engine.native import ENOUGH, MOST_KEY_BYTES, MOST_KNOWN, NOTHING_MORE, NativeLine, native
from openhtp.rpc import channel, frames
from openhtp.rpc.channel import ProtocolError

if TYPE_CHECKING:
    from openhtp.device.core import DeviceCore
    from openhtp.engine.protocol import Run

log = logging.getLogger(__name__)

# Frames taken from one client, on all its ducts together, before the others have their turn.
FRAMES_PER_TURN = 64
# Cancels that are remembered because their executions may still be on another duct.
MAX_EARLY_CANCELS = 1024


class Intake:
    """Reads ducts. ``new_turn`` gives every client its share again."""

    def __init__(
        self,
        executions: Executions,
        row: ExecutionRow | None,
        on_end: Callable[[Connection, ServedDuct], None],
    ) -> None:
        """Without a ``row``, all executions go to the scheduler."""
        self._executions = executions
        self._take = executions.execute if row is None else row.take
        self._read_ahead = None if row is None else row.read
        self._on_end = on_end
        self._turn = 0
        self._view = memoryview(bytearray(channel.MAX_MESSAGE) if row is None else row.buffer)
        self.took_any = False

    def new_turn(self) -> None:
        """All ready clients are about to be served once."""
        self._turn += 1

    def serve(self, connection: Connection, duct: ServedDuct) -> None:
        """Take what a client has sent on a duct."""
        if connection.turn != self._turn:
            connection.turn, connection.share = self._turn, FRAMES_PER_TURN
        first = connection.ducts[0]
        # Executions that a thread queued before it began to wait on its own duct must stay first.
        if duct is first or self._read(connection, first):
            self._read(connection, duct)

    def _read(self, connection: Connection, duct: ServedDuct) -> bool:
        """Take frames within the client's share; return whether the duct is empty now."""
        session = connection.session
        if session is None:
            if connection.closed:
                return True
            raise ProtocolError("an execution before Hello")
        take, view, receive, read_ahead = self._take, self._view, duct.sock.recv_into, self._read_ahead
        while connection.share > 0 and not duct.closed:
            count = ENOUGH
            if read_ahead is not None and not connection.early_cancels:
                taken, count = read_ahead(session, duct, connection.share)
                if taken:
                    connection.share -= taken
                    self.took_any = True
                if count == NOTHING_MORE:
                    return True
                if count == ENOUGH and connection.share <= 0:
                    break
            try:
                if count == ENOUGH:
                    count = receive(view)
            except BlockingIOError:
                return True
            except OSError:
                count = 0
            if count == 0:
                self._on_end(connection, duct)
                return True
            connection.share -= 1
            self.took_any = True
            kind = view[0]
            if kind == frames.EXECUTE:
                duct.has_many = bool(view[1] & frames.FLAG_MANY)
                take(session, duct.outlet, bytes(view[:count]))
                if connection.early_cancels:
                    self._cancel_early(connection, frames.read_head(view).job)
            elif kind == frames.CANCEL and count >= frames.EXECUTE_HEAD.size:
                head = frames.read_head(view)
                self._executions.line_up()
                if head.flags & frames.FLAG_ANSWER:
                    self._settle(connection, duct, head.job)
                else:
                    self._cancel(connection, duct, head.job)
            else:
                raise ProtocolError(f"frame of kind {kind} and {count} bytes")
        return duct.closed

    def _cancel(self, connection: Connection, duct: ServedDuct, job: int) -> None:
        session = connection.session
        assert session is not None
        if job not in session.jobs:
            # The job was sent before its cancel, but perhaps on a duct that was not read yet.
            others = [other for other in connection.ducts if other is not duct]
            empty = [self._read(connection, other) for other in others]
            if not all(empty):
                early = connection.early_cancels
                early[job] = None
                if len(early) > MAX_EARLY_CANCELS:
                    del early[next(iter(early))]  # most are of executions that are long over
        self._executions.cancel(session, job)

    def _settle(self, connection: Connection, duct: ServedDuct, job: int) -> None:
        """Cancel an execution whose caller was interrupted and does not know whether it was sent.

        If it was sent, it came first on the same duct, and its end is reported. Otherwise this reports an abort.
        """
        session = connection.session
        assert session is not None
        if job in session.jobs:
            self._executions.cancel(session, job)
            return
        now = self._executions.clock.now()
        record = frames.Record.of_moment(job, st.QNN_GRAPH_ERROR_ABORTED.code, now)
        duct.outlet.report_failure(record, "interrupted before it was sent, or when it was over")

    def _cancel_early(self, connection: Connection, job: int) -> None:
        """Cancel an execution if its cancel came before it."""
        session = connection.session
        assert session is not None
        if job in connection.early_cancels:
            del connection.early_cancels[job]
            self._executions.cancel(session, job)


class KnownGraph(NamedTuple):
    """A graph whose executions may wait in the line: on which memory, and how many tensors they bind."""

    session: Session
    graph: DeviceGraph
    bindings: int
    kept: object
    keys: set[bytes]

    @property
    def holds(self) -> bool:
        """Whether what was bound may still be used."""
        return self.graph.kept_bindings is self.kept


class RowEntry(NamedTuple):
    """An execution in the row: where its end is reported, its frame, and when that was read."""

    outlet: Reports
    frame: bytes
    received_ns: int


# What ``ExecutionRow.read`` returns if frames have to be read one by one.
_NOT_READ = (0, ENOUGH)
# So many executions of a line are computed before their ends are reported, and none is begun after this time.
_LONGEST_PIECE_NS = 60_000


class ExecutionRow:
    """At any time of one graph of one client. All methods belong to the loop's thread.

    Once an execution on some memory was computed here, the C side of the engine reads further frames that ask for
    just the same, and computes them (``NativeLine``). There is never anything in the line while anything waits
    in the row: before a frame that is not for the line, all of them go to the row.
    """

    def __init__(self, core: DeviceCore) -> None:
        self._core = core
        core.executions.line_up = self.line_up
        core.executions.when_idle = self._begin
        self._session: Session
        self._graph: DeviceGraph
        # By the client's number of the execution.
        self._entries: dict[int, RowEntry] = {}
        self.buffer = bytearray(channel.MAX_MESSAGE)
        self._line: NativeLine | None = None
        # What the line knows: a graph, its session, and the bindings that hold; None if it knows nothing.
        self._known: KnownGraph | None = None
        self._duct: ServedDuct  # of those that wait in the line

    def read(self, session: Session, duct: ServedDuct, most: int) -> tuple[int, int]:
        """Read frames into the line; returns how many, and what ``NativeLine.take`` does."""
        known, line, core = self._known, self._line, self._core
        if known is None or line is None or self._entries or core.executions.jobs or session is not known.session:
            return _NOT_READ
        graph, state = known.graph, line.state
        before: int = state.count
        if (before and duct is not self._duct) or not known.holds or not _fits(core, session, graph):
            return _NOT_READ
        size = line.take(duct.sock.fileno(), most, graph.context.queue_depth - graph.context.pending)
        taken: int = state.count - before
        if taken:
            duct.has_many = bool(state.many)
        if taken and not before:
            self._session, self._graph, self._duct = session, graph, duct
            core.loop.later(self._run)
        return taken, size

    def take(self, session: Session, outlet: Reports, frame: bytes) -> None:
        """Take an EXECUTE frame: into the row if it may go there, to the scheduler otherwise."""
        self._leave_line()
        if not self._join(session, outlet, frame):
            self._core.executions.execute(session, outlet, frame)

    def _leave_line(self) -> None:
        """Let those that wait in the line wait in the row."""
        if self._line is None or not self._line.state.count:
            return
        known, outlet = self._known, self._duct.outlet
        assert known is not None
        for one in self._line.take_back():
            flags = frames.FLAG_WAITED if one.waited else 0
            head = frames.ExecuteHead(frames.EXECUTE, flags, known.bindings, known.graph.number, 1, job=one.job)
            frame = frames.EXECUTE_HEAD.pack(*head) + one.key
            self._entries[one.job] = RowEntry(outlet, frame, one.received_ns)

    def _join(self, session: Session, outlet: Reports, frame: bytes) -> bool:
        core, entries = self._core, self._entries
        if len(frame) < frames.EXECUTE_HEAD.size:
            return False
        _, flags, _, number, batch, level, job, timeout_at, _ = frames.EXECUTE_HEAD.unpack_from(frame)
        graph = session.graphs.get(number)
        if (
            type(graph) is not DeviceGraph
            or flags & frames.FLAG_DIMS
            or batch != 1
            or level
            or timeout_at
            or job in entries
            or job in session.jobs
            or (entries and graph is not self._graph)
            or not self._is_alone(graph)
            or len(entries) >= graph.context.queue_depth - graph.context.pending
            or not _fits(core, session, graph)
        ):
            return False
        if not entries:
            self._session, self._graph = session, graph
            if not core.executions.jobs:
                core.loop.later(self._run)
        entries[job] = RowEntry(outlet, frame, core.clock.now())
        return True

    def _is_alone(self, graph: DeviceGraph) -> bool:
        """Whether all executions under way are of this graph, so that the row may follow them."""
        jobs = self._core.executions.jobs
        return not jobs or len(jobs) == len(self._core.loop.scheduler.clients[graph.number].queue)

    def _begin(self) -> None:
        """The executions before the row are over."""
        if self._entries:
            self._core.loop.later(self._run)

    def line_up(self) -> None:
        """Give what is left of the row to the scheduler, in order: something else is asked for."""
        if self._known is not None:
            self._leave_line()
            self._forget()
        if not self._entries:
            return
        entries, self._entries = self._entries, {}
        for entry in entries.values():
            self._to_scheduler(entry)

    def _to_scheduler(self, entry: RowEntry) -> None:
        session = self._session
        if session.closed:
            return
        try:
            self._core.executions.execute(session, entry.outlet, entry.frame)
        except (SchedulerFailed, ProtocolError) as error:
            log.exception("an execution of session %d", session.number)
            self._core.executions.on_broken(session, error)

    def _run(self) -> None:
        """Compute the row, until it is time to look at the inbox."""
        core = self._core
        if core.executions.jobs:
            return  # lined up meanwhile, and new ones have come
        until_ns = core.clock.now() + POLL_INTERVAL_NS
        line = self._line
        while self._entries or (line is not None and line.state.count):
            if not _fits(core, self._session, self._graph):
                self.line_up()
                return
            if self._entries:
                job = next(iter(self._entries))
                ended_ns = self._compute_safely(job, self._entries.pop(job))
            else:
                ended_ns = self._compute_line()
            if ended_ns >= until_ns:
                core.loop.later(self._run)
                return

    def _compute_line(self) -> int:
        """Compute some of the line and report their ends; returns when the last of them ended."""
        core, session, graph, line = self._core, self._session, self._graph, self._line
        assert line is not None
        records = line.compute(RECORDS_PER_PACKET, _LONGEST_PIECE_NS)
        piece, computed = line.state, len(records) // frames.RECORD.size
        ended_ns: int = piece.ended
        if piece.failed:
            self._leave_line()  # the next one is computed in the row, and its failure reported there
        if not computed:
            return ended_ns
        session.executions += computed
        graph.started = True
        if piece.any_queued:
            graph.queued_started = True
        if computed > 1:
            graph.note_step(piece.took_before)
        graph.note_step(piece.took)
        core.power.idle_since[graph.core] = ended_ns
        core.executions.told = True
        try:
            self._duct.outlet.report_packed(records)
        except Exception as error:
            log.exception("the ends of %d executions of session %d", computed, session.number)
            core.executions.on_broken(session, error)
        return ended_ns

    def _learn(self, key: bytes, count: int, runs: list[Run]) -> None:
        """Have executions on this memory wait in the line from now on, if the C side can compute them."""
        place: int = getattr(runs[0], "place", 0)
        if not place or len(key) > MOST_KEY_BYTES:
            return
        session, graph, known = self._session, self._graph, self._known
        if self._line is None:
            side = native()
            if side is None:
                return
            self._line = NativeLine(side, self.buffer, RECORDS_PER_PACKET, frames.RECORD.size)
        if known is None or known.graph is not graph or known.bindings != count or not known.holds:
            self._line.serve(graph.number, count, len(key))
            known = self._known = KnownGraph(session, graph, count, graph.kept_bindings, set())
        if key not in known.keys and len(known.keys) < MOST_KNOWN:
            known.keys.add(key)
            self._line.learn(key, place, runs)

    def _forget(self) -> None:
        self._known = None
        if self._line is not None:
            self._line.serve(0, 0, 0)

    def _compute_safely(self, job: int, entry: RowEntry) -> int:
        """Compute one; if our own code breaks, that is the end of this execution, or of its client, alone."""
        core, session = self._core, self._session
        try:
            return self._compute(job, entry)
        except Exception as error:
            failure, now = unexpected("the execution", error), core.clock.now()
            log.exception("execution %d of session %d", job, session.number)
            try:
                self._report(job, entry, (now, now), failure)
            except Exception as second_error:
                log.exception("the end of execution %d of session %d", job, session.number)
                core.executions.on_broken(session, second_error)
            return now

    def _compute(self, job: int, entry: RowEntry) -> int:
        """Compute one execution and report its end; returns when that was."""
        core, session, graph = self._core, self._session, self._graph
        key = entry.frame[frames.EXECUTE_HEAD.size :]
        _, flags, count, *_ = frames.EXECUTE_HEAD.unpack_from(entry.frame)

        def bind() -> list[Run]:
            return bind_ports(graph, session.memories, key, count, 1, with_dims=False)

        try:
            runs = graph.take_runs(key, bind)
        except Exception:
            self._to_scheduler(entry)  # which tells the client what is wrong
            return core.clock.now()
        session.executions += 1
        graph.started = True
        if not flags & frames.FLAG_WAITED:
            graph.queued_started = True
        began_ns = core.clock.now()
        failure = computed(runs[0], 0)
        ended_ns = core.clock.now()
        graph.note_step(ended_ns - began_ns)
        core.power.idle_since[graph.core] = ended_ns
        core.executions.told = True
        if failure is None:
            graph.give_back(key, runs)
            self._learn(key, count, runs)
        self._report(job, entry, (began_ns, ended_ns), failure)
        return ended_ns

    def _report(self, job: int, entry: RowEntry, times: tuple[int, int], failure: QnnError | None) -> None:
        code = st.QNN_SUCCESS.code if failure is None else failure.code
        record = frames.Record(job, code, 0, entry.received_ns, *times)
        if failure is None:
            entry.outlet.report(record)
        else:
            entry.outlet.report_failure(record, failure.message)


def _fits(core: DeviceCore, session: Session, graph: DeviceGraph) -> bool:
    """Whether executions of a graph may be computed in a row as things stand."""
    return is_short(graph) and is_free(core, session, graph)
