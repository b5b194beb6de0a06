"""Requests about what executions run: graphs, which a task makes ready, and apps, which compute nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from openhtp.core import status as st
from openhtp.core.errors import Aborted, BadBinary, InvalidArgument, QnnError, WrongState, error_context
from openhtp.device.answers import Answer
from openhtp.device.contexts import DeviceApp, DeviceContext, DeviceGraph, Unloaded, UpdateableGraph
from openhtp.device.loading import BinaryFile, LentGraph, Ready, Room, close_all, make_ready, pack_ready
from openhtp.device.op_packages import provide_packages
from openhtp.device.requests.contexts import check_group_priority, close_context, open_context
from openhtp.device.requests.table import Asked, handles
from openhtp.device.sessions import find
from openhtp.device.switching import SwitchedRoom
from openhtp.device.tasks import Task
from openhtp.engine.protocol import UpdateableProgram
from openhtp.memory.ledger import HeldMemory
from openhtp.options import OptionValues
from openhtp.program.binary import BinaryInfo, pack_graphs
from openhtp.rpc import messages as ms
from openhtp.rpc.channel import ProtocolError
from openhtp.rpc.shm import SharedBuffer
from openhtp.sched.events import ClientAdded, ClientKind

if TYPE_CHECKING:
    from openhtp.device.core import DeviceCore


@handles(ms.LoadGraphs, takes_descriptor=True)
def load(asked: Asked, request: ms.LoadGraphs) -> Task[list[Ready]]:
    """Load graphs of one binary, which share their common data."""
    core, session, opening = asked.core, asked.session, request.opening
    with contextlib.ExitStack() as undoing:
        if opening is None:
            context = find(session.contexts, request.context, "context")
        else:
            context = open_context(asked, opening)
            undoing.callback(_close_opened, core, context)
        file = _sent(asked, request)
        undoing.callback(file.close)
        _check(request, context, file)
        session.pieces.take()
        undoing.pop_all()
    options = request.options
    room = SwitchedRoom(context, request) if options.switching else Room(context)

    def work(task: Task[list[Ready]]) -> list[Ready]:
        provide_packages(request.packages, may_load=core.serves_one)
        places = [wanted.place for wanted in request.graphs]
        if isinstance(room, SwitchedRoom) and isinstance(file, BinaryFile):
            return room.make_first_ready(core.target, file.source, places, task.advance)
        return make_ready(core.target, file.graphs(places), task.advance, room, options)

    def done() -> None:
        session.pieces.give_back()
        file.close()

    def undo() -> None:
        room.give_back()
        done()
        if opening is not None:
            _close_opened(core, context)

    return Task(
        "loading",
        context,
        work=work,
        finish=lambda ready: loaded(core, context, request.graphs, room, done, ready),
        discard=close_all,
        undo=undo,
    )


def _sent(asked: Asked, request: ms.LoadGraphs) -> BinaryFile | LentGraph:
    """The source that the graphs are loaded from."""
    if request.lent:
        return LentGraph(asked.session.lent(request.lent))
    file = BinaryFile(asked.first_descriptor(len(request.external)))
    try:
        file.overlay(request.external, asked.descriptors, may_shrink=asked.core.serves_one)
    except BaseException:
        file.close()
        raise
    return file


def _check(request: ms.LoadGraphs, context: DeviceContext, file: BinaryFile | LentGraph) -> None:
    """Refuse graphs that cannot be loaded, before any work is done for them."""
    if request.lent and (request.options.switching or request.external):
        raise ProtocolError("a graph that is lent is one graph, whole and not switched")
    if request.external and request.options.switching:
        raise InvalidArgument("graphs of a binary in the client's buffers cannot be switched")
    if request.nbytes <= 0:
        raise ProtocolError(f"graphs of {request.nbytes} bytes")
    if request.nbytes > file.nbytes:
        raise BadBinary(
            f"the graphs take {request.nbytes} bytes of the binary, which has {file.nbytes}: it was cut"
            " since it was opened; do not change a file that is in use"
        )
    if request.options.switching and context.switcher is not None:
        raise InvalidArgument(f"context {context.number} switches graphs of a binary already")
    check_group_priority(context, [wanted.priority for wanted in request.graphs])


def _close_opened(core: DeviceCore, context: DeviceContext) -> None:
    """Close a context whose graphs could not be loaded, unless its client has freed it or gone."""
    if context.session.contexts.get(context.number) is context:
        close_context(core, context)


def loaded(
    core: DeviceCore,
    context: DeviceContext,
    wanted: Sequence[ms.WantedGraph],
    room: Room,
    done: Callable[[], None],
    ready: list[Ready],
) -> ms.Reply:
    """Let executions find graphs that are ready: all of them, or none if the scheduler refuses one."""
    session, memory = context.session, room.held
    graphs = [_graph(core.new_number(), context, source, memory) for source in ready]
    context.weights.append(memory)
    try:
        for graph, source, asks in zip(graphs, ready, wanted, strict=True):
            _add(core, graph, source.info.options, asks)
        if isinstance(room, SwitchedRoom):
            room.begin(core, graphs, ready, done)
    except QnnError:
        for graph in graphs:
            if graph.number in session.graphs:
                core.free_graph(session, graph)
            else:
                graph.close()
        context.weights.remove(memory)
        context.switcher = None
        raise
    if not isinstance(room, SwitchedRoom):
        done()
    return ms.Reply(
        value=context.number,
        graphs=[
            ms.ReadyGraph(graph=graph.number, steps=graph.steps, prepared=source.program is None)
            for graph, source in zip(graphs, ready, strict=True)
        ],
    )


def _graph(number: int, context: DeviceContext, ready: Ready, memory: HeldMemory) -> DeviceGraph:
    can_change = ready.info.updateables and isinstance(ready.loaded, (UpdateableProgram, Unloaded))
    kind = UpdateableGraph if can_change else DeviceGraph
    return kind(number, context, ready.info, ready.loaded, ready.program, memory)


def _add(core: DeviceCore, graph: DeviceGraph, options: OptionValues, wanted: ms.WantedGraph) -> None:
    has, pd = core.loop.scheduler.resources, core.pd_of(graph.context)
    with error_context(graph=graph.name):
        core.loop.handle(
            ClientAdded(
                t=core.clock.now(),
                client=graph.number,
                priority=wanted.priority,
                pd=pd,
                core=wanted.core,
                # More are those of a binary that was made for a chip with more.
                hvx=min(options.hvx_threads or has.hvx, has.hvx),
                vtcm_bytes=options.vtcm_bytes or has.vtcm_bytes,
            )
        )
    graph.core = wanted.core
    core.introduce(graph)


@handles(ms.FreeGraphs)
def free(asked: Asked, request: ms.FreeGraphs) -> ms.Reply:
    """Free graphs that nobody wants, because the call that loaded them was interrupted."""
    session = asked.session
    context = find(session.contexts, request.context, "context")
    for graph in [find(context.graphs, number, "graph") for number in dict.fromkeys(request.graphs)]:
        asked.core.free_graph(session, graph)
    if context.switcher is not None and not context.graphs:
        context.switcher.close()
        context.switcher = None
    context.settle_weights()
    return ms.Reply()


@handles(ms.Cancel)
def cancel(asked: Asked, request: ms.Cancel) -> ms.Reply:
    """Cancel slow work for this client; work that is already over is no mistake."""
    for task in asked.session.tasks:
        if task.request == request.request:
            task.cancel(Aborted(f"{task.what} was cancelled", st.QNN_CONTEXT_ERROR_ABORTED))
    return ms.Reply()


@handles(ms.PackGraph)
def pack(asked: Asked, request: ms.PackGraph) -> Task[SharedBuffer | None]:
    """Pack a graph for storage, in a form that is quickly made ready."""
    graph = find(asked.session.graphs, request.graph, "graph")
    target, program = asked.core.target, graph.program if isinstance(graph, DeviceGraph) else None

    def finish(packed: SharedBuffer | None) -> Answer:
        return ms.Reply() if packed is None else packed

    def discard(packed: SharedBuffer | None) -> None:
        if packed is not None:
            packed.close()

    return Task(
        "preparing", graph.context, work=lambda task: pack_ready(target, program), finish=finish, discard=discard
    )


@handles(ms.ExportBinary)
def export_binary(asked: Asked, request: ms.ExportBinary) -> Task[SharedBuffer]:
    """Have the vendor's library compile all graphs of a context together and save them."""
    library, context = asked.library, find(asked.session.contexts, request.context, "context")
    programs = [graph.program for graph in context.graphs.values() if isinstance(graph, DeviceGraph)]
    known = [program for program in programs if program is not None]
    if not known or len(known) < len(programs):
        raise WrongState("only graphs that were composed in their context can be saved by the vendor's library")

    def work(task: Task[SharedBuffer]) -> SharedBuffer:
        return SharedBuffer.holding([library.export_binary(known, weight_sharing=request.weight_sharing)])

    return Task("saving", context, work=work, finish=lambda saved: saved, discard=SharedBuffer.close)


@handles(ms.ImportBinary, takes_descriptor=True)
def import_binary(asked: Asked, request: ms.ImportBinary) -> Task[SharedBuffer]:
    """Turn a binary of the vendor's library into one of ours."""
    library, file = asked.library, BinaryFile(asked.descriptor())

    def work(task: Task[SharedBuffer]) -> SharedBuffer:
        with contextlib.closing(file):
            graphs = library.import_binary(bytes(file.source.read(0, file.source.nbytes)))
        return SharedBuffer.holding(pack_graphs(graphs, BinaryInfo()))

    return Task("importing", asked.session, work=work, finish=lambda binary: binary, discard=SharedBuffer.close)


@handles(ms.AddApp)
def add_app(asked: Asked, request: ms.AddApp) -> ms.Reply:
    """Add an app: a client of the scheduler that is no graph."""
    asked.refuse_library("apps are modelled, and it only computes")
    context = find(asked.session.contexts, request.context, "context")
    core = asked.core
    app = DeviceApp(core.new_number(), context, request.name)
    core.loop.handle(
        ClientAdded(
            t=core.clock.now(),
            client=app.number,
            kind=ClientKind.APP,
            priority=request.priority,
            pd=core.pd_of(context),
            core=request.core,
            hmx=request.hmx,
            hvx=request.hvx,
            vtcm_bytes=request.vtcm_bytes,
            page_bytes=request.page_bytes,
        )
    )
    app.core = request.core
    core.introduce(app)
    return ms.Reply(value=app.number)


@handles(ms.SetPace)
def set_pace(asked: Asked, request: ms.SetPace) -> ms.Reply:
    """Set how long executions take from now on."""
    asked.refuse_library("paced executions are modelled, and it only computes")
    find(asked.session.graphs, request.graph, "graph").pace = request.work
    return ms.Reply()
