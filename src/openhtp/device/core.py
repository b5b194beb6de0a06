"""What a client may ask of the device, whatever way the question came."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable
from typing import TypeVar

from openhtp.core import status as st
from openhtp.core.errors import (
    ExecutionError,
    InvalidHandle,
    QnnError,
    WrongState,
)
from openhtp.device.clock import Clock
from openhtp.device.executions import Executions
from openhtp.device.jobs import Job
from openhtp.device.loading import Ready, attempt, make_ready, pack_ready
from openhtp.device.loop import Loop
from openhtp.device.recording import Recording
from openhtp.device.runner import Runner
from openhtp.device.sessions import DeviceApp, DeviceContext, DeviceGraph, Session
from openhtp.device.target import Target
from openhtp.rpc import messages as ms
from openhtp.rpc.channel import ProtocolError
from openhtp.rpc.shm import SharedBuffer
from openhtp.sched.actions import Refuse
from openhtp.sched.events import ClientAdded, ClientKind, ClientRemoved, PriorityChanged
from openhtp.sched.scheduler import Scheduler

log = logging.getLogger(__name__)

_T = TypeVar("_T")


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
        self.recording = Recording()
        self._target = target
        self._numbers = itertools.count(1)
        self.executions = Executions(clock, self.recording, self._numbers)
        self.loop = Loop(scheduler, clock, make_runner(self.executions.jobs), self.executions)
        self.executions.loop = self.loop

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
            case ms.AddApp():
                return self._add_app(session, request)
            case ms.SetPace():
                graph = _find(session.graphs, request.graph, "graph")
                if isinstance(graph, DeviceGraph):
                    graph.pace = request.work
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
            ready = attempt("loading", lambda: make_ready(self._target, buffer.view[: request.nbytes]))
            if isinstance(ready, QnnError):
                return lambda: self._not_loaded(session, buffer, ready)
            return lambda: self._loaded(session, context, request, buffer, ready)

        return slow

    def start_packing(
        self, session: Session, request: ms.PackGraph
    ) -> Callable[[], Callable[[], ms.Reply | SharedBuffer]]:
        """Check a PackGraph request; returns the slow part, as ``start_loading`` does."""
        graph = _find(session.graphs, request.graph, "graph")
        program = graph.program if isinstance(graph, DeviceGraph) else None

        def slow() -> Callable[[], ms.Reply | SharedBuffer]:
            packed = attempt("preparing", lambda: pack_ready(self._target, program))
            answer = error_reply(packed) if isinstance(packed, QnnError) else packed or ms.Reply()
            return lambda: answer

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
        ready: Ready,
    ) -> ms.Reply:
        info, loaded = ready.info, ready.loaded
        if context.closed:
            loaded.close()
            return self._not_loaded(session, buffer, InvalidHandle("the context was freed while loading"))
        graph = DeviceGraph(next(self._numbers), context, info, loaded, ready.program)
        graph.nbytes = buffer.nbytes
        buffer.close()
        has, asks = self.loop.scheduler.resources, info.options
        added = ClientAdded(
            t=self.clock.now(),
            client=graph.number,
            priority=request.priority,
            pd=session.number,
            core=request.core,
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
        self.recording.name_graph(graph.number, info.name, session.number, request.priority)
        return ms.Reply(value=graph.number, steps=loaded.steps, info={"prepared": ready.program is None})

    def _create_context(self, session: Session, request: ms.CreateContext) -> ms.Reply:
        number = next(self._numbers)
        session.contexts[number] = DeviceContext(number, session, request.priority, request.queue_depth)
        return ms.Reply(value=number)

    def _add_app(self, session: Session, request: ms.AddApp) -> ms.Reply:
        context = _find(session.contexts, request.context, "context")
        app = DeviceApp(next(self._numbers), context, request.name)
        self.loop.handle(
            ClientAdded(
                t=self.clock.now(),
                client=app.number,
                kind=ClientKind.APP,
                priority=request.priority,
                pd=session.number,
                hmx=request.hmx,
                hvx=request.hvx,
                vtcm_bytes=request.vtcm_bytes,
                page_bytes=request.page_bytes,
            )
        )
        session.graphs[app.number] = context.graphs[app.number] = app
        self.recording.name_graph(app.number, app.name, session.number, request.priority)
        return ms.Reply(value=app.number)

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

    def _describe(self) -> dict[str, object]:
        return {
            "pid": os.getpid(),
            "sessions": [
                {
                    "session": session.number,
                    "pid": session.pid,
                    "label": session.label,
                    "contexts": len(session.contexts),
                    "graphs": [graph.name for graph in session.graphs.values()],
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
            self.executions.inject_fault(request.fail_graph, request.fail_step, error)
        return ms.Reply()


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
