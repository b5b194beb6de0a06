"""What a client may ask of the device, whatever way the question came."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable
from typing import TypeVar

import msgspec

from openhtp.core import status as st
from openhtp.core.errors import (
    ExecutionError,
    InvalidHandle,
    QnnError,
    WrongState,
)
from openhtp.core.status import QNN_SUCCESS, Status
from openhtp.device.clock import Clock
from openhtp.device.jobs import Job
from openhtp.device.loop import Loop
from openhtp.device.outlet import Outlet
from openhtp.device.recording import Recording
from openhtp.device.runner import Runner
from openhtp.device.sessions import DeviceContext, DeviceGraph, Session, bind_ports
from openhtp.engine.protocol import Engine, LoadedProgram
from openhtp.program.program import Program
from openhtp.rpc import frames
from openhtp.rpc import messages as ms
from openhtp.rpc.channel import ProtocolError
from openhtp.rpc.shm import SharedBuffer
from openhtp.sched.actions import AskYield, Grant, Outcome, Refuse, Release
from openhtp.sched.events import AbortRequested, ClientAdded, ClientRemoved, PriorityChanged, Submitted
from openhtp.sched.scheduler import Scheduler

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_STATUS_OF: dict[Outcome, Status] = {
    Outcome.DONE: QNN_SUCCESS,
    Outcome.ABORTED: st.QNN_GRAPH_ERROR_ABORTED,
    Outcome.TIMED_OUT: st.QNN_GRAPH_ERROR_TIMED_OUT,
    Outcome.GONE: st.QNN_GRAPH_ERROR_INVALID_CONTEXT,
}

_DETAILED = 2


class DeviceCore:
    """The device without its transport. All methods run on the loop's thread."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        clock: Clock,
        engine: Engine,
        make_runner: Callable[[dict[int, Job]], Runner],
    ) -> None:
        self.clock = clock
        self.sessions: dict[int, Session] = {}
        self.recording = Recording()
        self._engine = engine
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count(1)
        self._faults: dict[int, tuple[int, QnnError]] = {}
        self.loop = Loop(scheduler, clock, make_runner(self._jobs), self)

    # Sessions

    def open_session(self, *, pid: int, label: str) -> Session:
        """A client has come."""
        session = Session(next(self._numbers), pid=pid, label=label)
        self.sessions[session.number] = session
        return session

    def close_session(self, session: Session) -> None:
        """A client has gone, in whatever way: free all it had."""
        if session.closed:
            return
        session.closed = True
        for context in list(session.contexts.values()):
            self._free_context(session, context)
        del self.sessions[session.number]

    # Control requests

    def request(self, session: Session, request: ms.Request, descriptors: list[int]) -> ms.Reply:
        """Answer a quick request. LoadGraph is not one: see ``start_loading``."""
        match request:
            case ms.CreateContext():
                return self._create_context(session, request)
            case ms.FreeContext():
                self._free_context(session, _find(session.contexts, request.context, "context"))
                return ms.Reply()
            case ms.RegisterMemory():
                return self._register(session, request, descriptors)
            case ms.DeregisterMemory():
                self._deregister(session, request.memory)
                return ms.Reply()
            case ms.SetPriority():
                graph = _find(session.graphs, request.graph, "graph")
                self._set_priority([graph], request.priority)
                return ms.Reply()
            case ms.SetContextPriority():
                context = _find(session.contexts, request.context, "context")
                self._set_priority(list(context.graphs.values()), request.priority)
                context.priority = request.priority
                return ms.Reply()
            case ms.SetTrace():
                self.recording.enabled = request.enabled
                return ms.Reply()
            case ms.Inspect():
                return ms.Reply(info=self._describe())
            case ms.Inject():
                return self._inject(request)
            case _:
                raise ProtocolError(f"{type(request).__name__} is not expected here")

    def start_loading(
        self, session: Session, request: ms.LoadGraph, descriptors: list[int]
    ) -> Callable[[], Callable[[], ms.Reply]]:
        """Check a LoadGraph request; returns the slow part, which in turn returns the part for the loop."""
        context = _find(session.contexts, request.context, "context")
        if len(descriptors) != 1:
            raise ProtocolError(f"LoadGraph with {len(descriptors)} descriptors; expected 1")
        buffer = SharedBuffer.attach(descriptors[0])
        try:
            if not 0 < request.nbytes <= buffer.nbytes:
                raise ProtocolError(f"program of {request.nbytes} bytes in {buffer.nbytes} bytes of memory")
            session.reserve(buffer.nbytes, "the graph")
        except (ProtocolError, QnnError):
            buffer.close()
            raise

        def slow() -> Callable[[], ms.Reply]:
            try:
                program = Program.from_bytes(buffer.view[: request.nbytes])
                loaded = self._engine.load(program)
            except QnnError as failure:
                error = failure
            except Exception as failure:
                log.exception("loading failed")
                error = ExecutionError(f"the program cannot be loaded: {failure}")
            else:
                return lambda: self._loaded(session, context, request, buffer, program, loaded)
            return lambda: self._not_loaded(session, buffer, error)

        return slow

    def _not_loaded(self, session: Session, buffer: SharedBuffer, error: QnnError) -> ms.Reply:
        session.bytes_used -= buffer.nbytes
        buffer.close()
        return error_reply(error)

    def _loaded(
        self,
        session: Session,
        context: DeviceContext,
        request: ms.LoadGraph,
        buffer: SharedBuffer,
        program: Program,
        loaded: LoadedProgram,
    ) -> ms.Reply:
        if context.closed:
            loaded.close()
            return self._not_loaded(session, buffer, InvalidHandle("the context was freed while loading"))
        graph = DeviceGraph(next(self._numbers), context, program, loaded)
        graph.nbytes = buffer.nbytes
        buffer.close()
        has, asks = self.loop.scheduler.resources, program.options
        added = ClientAdded(
            t=self.clock.now(),
            client=graph.number,
            priority=request.priority,
            pd=session.number,
            hvx=has.hvx if asks.hvx_threads is None else asks.hvx_threads,
            vtcm_bytes=has.vtcm_bytes if asks.vtcm_bytes is None else asks.vtcm_bytes,
        )
        try:
            self.loop.handle(added)
        except QnnError as error:
            session.bytes_used -= graph.nbytes
            graph.close()
            return error_reply(error)
        session.graphs[graph.number] = context.graphs[graph.number] = graph
        self.recording.name_graph(graph.number, program.name, session.number, request.priority)
        return ms.Reply(value=graph.number, steps=loaded.steps)

    def _create_context(self, session: Session, request: ms.CreateContext) -> ms.Reply:
        number = next(self._numbers)
        session.contexts[number] = DeviceContext(number, session, request.priority, request.queue_depth)
        return ms.Reply(value=number)

    def _free_context(self, session: Session, context: DeviceContext) -> None:
        context.closed = True
        now = self.clock.now()
        for graph in list(context.graphs.values()):
            self.loop.handle(ClientRemoved(t=now, client=graph.number))
            del session.graphs[graph.number]
            session.bytes_used -= graph.nbytes
            graph.close()
        for memory in list(context.memories):
            self._deregister(session, memory)
        del session.contexts[context.number]

    def _register(self, session: Session, request: ms.RegisterMemory, descriptors: list[int]) -> ms.Reply:
        context = _find(session.contexts, request.context, "context")
        if len(descriptors) != 1:
            raise ProtocolError(f"RegisterMemory with {len(descriptors)} descriptors; expected 1")
        buffer = SharedBuffer.attach(descriptors[0])
        try:
            session.reserve(buffer.nbytes, "the memory")
        except QnnError:
            buffer.close()
            raise
        number = next(self._numbers)
        session.memories[number] = buffer
        context.memories.add(number)
        return ms.Reply(value=number)

    def _deregister(self, session: Session, memory: int) -> None:
        buffer = _find(session.memories, memory, "memory")
        for graph in session.graphs.values():
            graph.forget_memory(memory)
        for context in session.contexts.values():
            context.memories.discard(memory)
        del session.memories[memory]
        session.bytes_used -= buffer.nbytes
        buffer.close()

    def _set_priority(self, graphs: list[DeviceGraph], priority: int) -> None:
        # All or none: a context keeps its old priority if one of its graphs has already run.
        for graph in graphs:
            if graph.started:
                raise WrongState(
                    f"priority of graph {graph.program.name!r} cannot change after its first execution started",
                    st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
                )
        now = self.clock.now()
        for graph in graphs:
            actions = self.loop.handle(PriorityChanged(t=now, client=graph.number, priority=priority))
            refused = [action for action in actions if isinstance(action, Refuse)]
            if refused:
                raise WrongState(refused[0].reason, st.QNN_GRAPH_ERROR_INVALID_ARGUMENT)

    def _describe(self) -> dict[str, object]:
        return {
            "pid": os.getpid(),
            "sessions": [
                {
                    "session": session.number,
                    "pid": session.pid,
                    "label": session.label,
                    "contexts": len(session.contexts),
                    "graphs": [graph.program.name for graph in session.graphs.values()],
                    "bytes": session.bytes_used,
                    "pending": len(session.jobs),
                    "executions": session.executions,
                }
                for session in self.sessions.values()
            ],
        }

    def _inject(self, request: ms.Inject) -> ms.Reply:
        if request.hold is not None:
            self.loop.held = request.hold
        if request.fail_graph is not None:
            status = st.for_code(request.fail_status)
            error = ExecutionError(f"injected failure at step {request.fail_step}", status)
            self._faults[request.fail_graph] = (request.fail_step, error)
        return ms.Reply()

    # Executions

    def execute(self, session: Session, outlet: Outlet, frame: bytes) -> None:
        """Take an EXECUTE frame. Whatever is wrong with its content is reported as the execution's end."""
        if len(frame) < frames.EXECUTE_HEAD.size:
            raise ProtocolError(f"execute frame of {len(frame)} bytes")
        head = frames.EXECUTE_HEAD.unpack_from(frame)
        _, flags, count, number, batch, profile_level, client_job, timeout_at = head
        now = self.clock.now()
        if client_job in session.jobs:
            raise ProtocolError(f"job {client_job} is already under way")
        graph = session.graphs.get(number)
        try:
            if graph is None:
                raise InvalidHandle("the graph was freed", st.QNN_GRAPH_ERROR_INVALID_CONTEXT)
            key = frame[frames.EXECUTE_HEAD.size :]
            cache_key = key if batch == 1 else key + batch.to_bytes(4, "little")
            runs = graph.take_runs(
                cache_key,
                lambda: bind_ports(
                    graph, session.memories, key, count, batch, with_dims=bool(flags & frames.FLAG_DIMS)
                ),
            )
        except QnnError as error:
            record = frames.Record(client_job, error.code, 0, now, now, now, 0, 0, 0)
            outlet.report_failure(record, error.message)
            return
        job = Job(next(self._numbers), client_job, session, outlet, graph, cache_key, runs, now, profile_level)
        session.jobs[client_job] = self._jobs[job.number] = job
        session.executions += 1
        if self.recording.enabled:
            self.recording.submitted(job.number, graph.number, now)
        self.loop.handle(
            Submitted(
                t=now,
                job=job.number,
                client=number,
                steps=graph.steps * batch,
                timeout_at=timeout_at or None,
            )
        )

    def cancel(self, session: Session, client_job: int) -> None:
        """End a job early; one that is already over is nobody's concern."""
        job = session.jobs.get(client_job)
        if job is not None:
            self.loop.handle(AbortRequested(t=self.clock.now(), job=job.number))

    # What the loop reports

    def finished(self, number: int, outcome: Outcome, t: int) -> None:
        """A job is over: tell its client."""
        job = self._jobs.pop(number)
        del job.session.jobs[job.client_job]
        if self.recording.enabled:
            self.recording.finished(number, outcome, t)
        status = _STATUS_OF[outcome]
        failure = job.failure
        if failure is not None and outcome is not Outcome.GONE:
            status = failure.status
        record = frames.Record(
            job.client_job,
            status.code,
            job.yields,
            job.received_ns,
            job.started_ns or t,
            t,
            job.release_ns,
            job.paused_ns,
            job.restore_ns,
        )
        if failure is None:
            job.graph.give_back(job.key, job.runs)
        if job.session.closed:
            return
        if failure is not None:
            job.outlet.report_failure(record, failure.message)
        else:
            job.outlet.report(record, self._profile(job) if job.profile_level >= _DETAILED else b"")

    def granted(self, action: Grant, t: int) -> None:
        """A job got its resources, for the first time or again."""
        job = self._jobs[action.job]
        if job.pause_started_ns:
            job.paused_ns += t - job.pause_started_ns
            job.pause_started_ns = 0
            job.restore_ns -= t  # completed when its next step ends its restore
        else:
            job.started_ns = t
            job.graph.started = True
        if self.recording.enabled:
            self.recording.granted(action, t)

    def released(self, action: Release, t: int) -> None:
        """A job gave its resources back; if it was paused, it waits for them from now on."""
        job = self._jobs.get(action.job)
        if job is not None and action.paused:
            job.yields += 1
            job.pause_started_ns = t
            if job.yield_asked_ns:
                job.release_ns += t - job.yield_asked_ns
                job.yield_asked_ns = 0
        if self.recording.enabled:
            self.recording.released(action, t)

    def yield_asked(self, action: AskYield, t: int) -> None:
        """A job was asked to make room."""
        self._jobs[action.job].yield_asked_ns = t

    def step_ended(self, number: int, step: int, start_ns: int, end_ns: int) -> None:
        """A step was computed; a step that failed ends its job."""
        job = self._jobs.get(number)
        if job is None:
            return
        if job.restore_ns < 0:
            job.restore_ns += start_ns
        if job.profile_level >= _DETAILED:
            job.step_times_ns.append(end_ns - start_ns)
        if self.recording.enabled:
            self.recording.step(number, step, start_ns, end_ns)
        fault = self._faults.get(job.graph.number)
        if fault is not None and fault[0] == step:
            del self._faults[job.graph.number]
            job.failure = fault[1]
        if job.failure is not None:
            self.loop.handle(AbortRequested(t=end_ns, job=number))

    def _profile(self, job: Job) -> bytes:
        head = frames.PROFILE_HEAD.pack(frames.PROFILE, 0, 0, job.client_job)
        return head + msgspec.msgpack.encode(job.step_times_ns[:4096])


def error_reply(error: QnnError) -> ms.Reply:
    """A failure as a reply; the client raises it again as what it was."""
    return ms.Reply(
        error=error.message,
        status_name=error.name,
        status_code=error.code,
        info={"kind": type(error).__name__},
    )


def _find(table: dict[int, _T], number: int, what: str) -> _T:
    found = table.get(number)
    if found is None:
        raise InvalidHandle(f"{what} {number} does not exist in this session")
    return found
