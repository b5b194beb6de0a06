"""What a client may ask of the device, whatever way the question came."""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Callable

from openhtp.core import status as st
from openhtp.core.errors import (
    InvalidArgument,
    InvalidHandle,
    QnnError,
    WrongState,
    error_context,
)
from openhtp.core.limits import MAX_QUEUE_DEPTH
from openhtp.device.budget import Grant, Use
from openhtp.device.clock import Clock
from openhtp.device.contexts import DeviceApp, DeviceContext, DeviceGraph
from openhtp.device.executions import Executions
from openhtp.device.faults import FaultReach, inject
from openhtp.device.jobs import Job
from openhtp.device.loading import Ready, attempt, make_ready, pack_ready
from openhtp.device.loop import Loop
from openhtp.device.recording import Recording
from openhtp.device.runner import Runner
from openhtp.device.sessions import Session, find
from openhtp.device.target import Target
from openhtp.program.options import GraphOptions
from openhtp.rpc import messages as ms
from openhtp.rpc.channel import ProtocolError
from openhtp.rpc.shm import SharedBuffer
from openhtp.sched.actions import Refuse
from openhtp.sched.events import (
    ClientAdded,
    ClientExpelled,
    ClientKind,
    ClientRemoved,
    HoldChanged,
    PriorityChanged,
)
from openhtp.sched.scheduler import Scheduler

log = logging.getLogger(__name__)

# Pieces of memory of a client that has gone that are given back in one turn of the loop.
MEMORIES_AT_ONCE = 64


class DeviceCore:
    """The device without its transport. All methods run on the loop's thread."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        clock: Clock,
        target: Target,
        make_runner: Callable[[dict[int, Job]], Runner],
    ) -> None:
        self.clock = clock
        self.sessions: dict[int, Session] = {}
        self.closing: deque[Session] = deque()
        self.faults = FaultReach.DEVICE
        self._target = target
        self._numbers = itertools.count(1)
        self.executions = Executions(clock, self._numbers)
        self.loop = Loop(scheduler, clock, make_runner(self.executions.jobs), self.executions)
        self.executions.loop = self.loop
        self.recording = Recording(scheduler, self._name_of, self.executions.pace_of)
        self.executions.recording = self.recording

    # Sessions

    def open_session(self, *, pid: int, label: str) -> Session:
        """A client has come."""
        session = Session(next(self._numbers), pid=pid, label=label)
        self.sessions[session.number] = session
        return session

    def close_session(self, session: Session) -> None:
        """A client has gone, in whatever way: free all it had, now."""
        self.start_closing(session)
        while self.closing:
            self.close_some()

    def start_closing(self, session: Session) -> None:
        """A client has gone: from now on nothing is done for it. What it had is freed by ``close_some``."""
        if session.closed:
            return
        session.closed = True
        for context in session.contexts.values():
            context.closed = True
        self.sessions.pop(session.number, None)
        self.closing.append(session)

    def close_some(self) -> None:
        """Free a little of what clients left behind, so that a large heritage does not hold up those who stay."""
        session = self.closing[0]
        try:
            if session.graphs:
                self._free_graph(session, session.graphs[next(iter(session.graphs))])
            else:
                for memory in list(itertools.islice(session.memories, MEMORIES_AT_ONCE)):
                    session.memories.pop(memory).close()
        except Exception:
            log.exception("closing session %d", session.number)
        if not session.graphs and not session.memories:
            self.executions.forget_all(session)
            session.contexts.clear()
            self.closing.popleft()

    # Control requests

    def request(self, session: Session, request: ms.Request, descriptors: list[int]) -> ms.Reply:
        """Answer a quick request. LoadGraphs is not one: see ``start_loading``."""
        match request:
            case ms.CreateContext():
                return self._create_context(session, request)
            case ms.FreeContext():
                self._free_context(session, find(session.contexts, request.context, "context"))
                return ms.Reply()
            case ms.RegisterMemory():
                return self._register(session, request, descriptors)
            case ms.DeregisterMemory():
                session.unmap(request.memory)
                return ms.Reply()
            case ms.AddApp():
                return self._add_app(session, request)
            case ms.SetPace():
                find(session.graphs, request.graph, "graph").pace = request.work
                return ms.Reply()
            case ms.SetPriority():
                graph = find(session.graphs, request.graph, "graph")
                self._set_priority([graph], request.priority)
                return ms.Reply()
            case ms.SetContextPriority():
                context = find(session.contexts, request.context, "context")
                self._set_priority(list(context.graphs.values()), request.priority)
                context.priority = request.priority
                return ms.Reply()
            case ms.SetTrace():
                self._record(enabled=request.enabled)
                return ms.Reply()
            case ms.Inspect():
                return ms.Reply(info=self._describe())
            case ms.Inject():
                inject(session, request, self.faults, self.loop)
                return ms.Reply()
            case _:
                raise ProtocolError(f"{type(request).__name__} is not expected here")

    def start_loading(
        self, session: Session, request: ms.LoadGraphs, descriptors: list[int]
    ) -> Callable[[], Callable[[], ms.Reply]]:
        """Check a LoadGraphs request; returns the slow part, which in turn returns the part for the loop."""
        context = find(session.contexts, request.context, "context")
        buffer = _attach(request, descriptors)
        try:
            if not 0 < request.nbytes <= buffer.nbytes:
                raise ProtocolError(f"program of {request.nbytes} bytes in {buffer.nbytes} bytes of memory")
            what = "the graph" if len(request.graphs) == 1 else "the binary"
            grant = session.budget.take(buffer.nbytes, Use.WEIGHTS, what)
        except (ProtocolError, QnnError):
            buffer.close()
            raise

        def slow() -> Callable[[], ms.Reply]:
            places = [wanted.place for wanted in request.graphs]
            ready = attempt("loading", lambda: make_ready(self._target, buffer.view[: request.nbytes], places))
            if isinstance(ready, QnnError):
                return lambda: self._not_loaded(grant, buffer, ready)
            return lambda: self._loaded(context, request, grant, buffer, ready)

        return slow

    def start_packing(
        self, session: Session, request: ms.PackGraph
    ) -> Callable[[], Callable[[], ms.Reply | SharedBuffer]]:
        """Check a PackGraph request; returns the slow part, as ``start_loading`` does."""
        graph = find(session.graphs, request.graph, "graph")
        program = graph.program if isinstance(graph, DeviceGraph) else None

        def slow() -> Callable[[], ms.Reply | SharedBuffer]:
            packed = attempt("preparing", lambda: pack_ready(self._target, program))
            answer = error_reply(packed) if isinstance(packed, QnnError) else packed or ms.Reply()
            return lambda: answer

        return slow

    def _not_loaded(self, grant: Grant, buffer: SharedBuffer, error: QnnError) -> ms.Reply:
        grant.give_back()
        buffer.close()
        return error_reply(error)

    def _loaded(
        self,
        context: DeviceContext,
        request: ms.LoadGraphs,
        grant: Grant,
        buffer: SharedBuffer,
        ready: list[Ready],
    ) -> ms.Reply:
        if context.closed:
            for made in ready:
                made.loaded.close()
            return self._not_loaded(grant, buffer, InvalidHandle("the context was freed while loading"))
        buffer.close()
        session = context.session
        graphs = [DeviceGraph(next(self._numbers), context, r.info, r.loaded, r.program) for r in ready]
        context.weights.append(grant)
        try:
            for graph, made, wanted in zip(graphs, ready, request.graphs, strict=True):
                self._add_graph(graph, made.info.options, wanted)
        except QnnError as error:
            for graph in graphs:
                if graph.number in session.graphs:
                    self._free_graph(session, graph)
                else:
                    graph.close()
            context.weights.remove(grant)
            grant.give_back()
            return error_reply(error)
        return ms.Reply(
            graphs=[
                ms.LoadedGraph(graph=graph.number, steps=graph.steps, prepared=made.program is None)
                for graph, made in zip(graphs, ready, strict=True)
            ]
        )

    def _add_graph(self, graph: DeviceGraph, asks: GraphOptions, wanted: ms.WantedGraph) -> None:
        has, session = self.loop.scheduler.resources, graph.context.session
        with error_context(graph=graph.name):
            self.loop.handle(
                ClientAdded(
                    t=self.clock.now(),
                    client=graph.number,
                    priority=wanted.priority,
                    pd=session.number,
                    core=wanted.core,
                    hvx=has.hvx if asks.hvx_threads is None else asks.hvx_threads,
                    vtcm_bytes=has.vtcm_bytes if asks.vtcm_bytes is None else asks.vtcm_bytes,
                )
            )
        self._introduce(session, graph)

    def _create_context(self, session: Session, request: ms.CreateContext) -> ms.Reply:
        if not 1 <= request.queue_depth <= MAX_QUEUE_DEPTH:
            raise InvalidArgument(
                f"queue depth {request.queue_depth}; expected 1 to {MAX_QUEUE_DEPTH}",
                st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
            )
        number = next(self._numbers)
        session.contexts[number] = DeviceContext(number, session, request.priority, request.queue_depth)
        return ms.Reply(value=number)

    def _add_app(self, session: Session, request: ms.AddApp) -> ms.Reply:
        context = find(session.contexts, request.context, "context")
        app = DeviceApp(next(self._numbers), context, request.name)
        self.loop.handle(
            ClientAdded(
                t=self.clock.now(),
                client=app.number,
                kind=ClientKind.APP,
                priority=request.priority,
                pd=session.number,
                core=request.core,
                hmx=request.hmx,
                hvx=request.hvx,
                vtcm_bytes=request.vtcm_bytes,
                page_bytes=request.page_bytes,
            )
        )
        self._introduce(session, app)
        return ms.Reply(value=app.number)

    def _free_context(self, session: Session, context: DeviceContext) -> None:
        context.closed = True
        for graph in list(context.graphs.values()):
            self._free_graph(session, graph)
        for memory in list(context.memories):
            session.unmap(memory)
        while context.weights:
            context.weights.pop().give_back()
        del session.contexts[context.number]

    def _introduce(self, session: Session, graph: DeviceGraph | DeviceApp) -> None:
        """A graph is known to the scheduler: let executions find it."""
        session.graphs[graph.number] = graph.context.graphs[graph.number] = graph
        if session.held:
            self.loop.handle(HoldChanged(t=self.clock.now(), client=graph.number, held=True))

    def _free_graph(self, session: Session, graph: DeviceGraph | DeviceApp) -> None:
        del session.graphs[graph.number], graph.context.graphs[graph.number]
        try:
            if not session.broken:
                self.loop.handle(ClientRemoved(t=self.clock.now(), client=graph.number))
                self.loop.hurry(graph.number)
        except Exception:
            log.exception("removing graph %d from the scheduler", graph.number)
            session.broken = True
        try:
            if session.broken:
                # The scheduler no longer knows its way about this one: out with all that is left of it.
                self.loop.handle(ClientExpelled(t=self.clock.now(), client=graph.number))
        finally:
            graph.close()

    def _register(self, session: Session, request: ms.RegisterMemory, descriptors: list[int]) -> ms.Reply:
        context = find(session.contexts, request.context, "context")
        buffer = _attach(request, descriptors)
        number = next(self._numbers)
        try:
            session.map(number, context, buffer)
        except QnnError:
            buffer.close()
            raise
        return ms.Reply(value=number)

    def _set_priority(self, graphs: list[DeviceGraph | DeviceApp], priority: int) -> None:
        # All or none: a context keeps its old priority if one of its graphs has already run.
        for graph in graphs:
            if graph.started:
                raise WrongState(
                    f"priority of graph {graph.name!r} cannot change after its first execution started",
                    st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
                )
        now = self.clock.now()
        for graph in graphs:
            actions = self.loop.handle(PriorityChanged(t=now, client=graph.number, priority=priority))
            refused = [action for action in actions if isinstance(action, Refuse)]
            if refused:
                raise WrongState(refused[0].reason, st.QNN_GRAPH_ERROR_INVALID_ARGUMENT)

    def _record(self, *, enabled: bool) -> None:
        if not enabled:
            self.recording.stop()
            self.loop.observe = None
        elif not self.recording.enabled:
            self.loop.observe = self.recording.start(self.clock.now())

    def _name_of(self, client: int) -> str:
        found = (session.graphs.get(client) for session in self.sessions.values())
        return next((graph.name for graph in found if graph is not None), f"client {client}")

    def _describe(self) -> dict[str, object]:
        sessions = [session.describe() for session in self.sessions.values()]
        return {"pid": os.getpid(), "sessions": sessions}


def error_reply(error: QnnError) -> ms.Reply:
    """A failure as a reply; the client raises it again as what it was."""
    return ms.Reply(
        error=error.message,
        status_name=error.name,
        status_code=error.code,
        where=error.context,
        info={"kind": type(error).__name__},
    )


def _attach(request: ms.Request, descriptors: list[int]) -> SharedBuffer:
    """Map the one descriptor that came with a request, and take it from the list: who is left there is closed."""
    if len(descriptors) != 1:
        raise ProtocolError(f"{type(request).__name__} with {len(descriptors)} descriptors; expected 1")
    return SharedBuffer.attach(descriptors.pop())
