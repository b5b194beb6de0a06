"""Requests about contexts: create and free them, share memory with them, set priorities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, UnsupportedFeature, WrongState, error_context
from openhtp.core.limits import MAX_QUEUE_DEPTH
from openhtp.core.status import Status
from openhtp.device.contexts import DeviceApp, DeviceContext, DeviceGraph, DeviceGroup
from openhtp.device.lent_buffers import LentBuffer
from openhtp.device.requests.table import Asked, handles
from openhtp.device.sessions import find
from openhtp.rpc import messages as ms
from openhtp.sched.actions import Refuse
from openhtp.sched.events import PriorityChanged, ThreadsChanged

if TYPE_CHECKING:
    from openhtp.device.core import DeviceCore


@handles(ms.CreateContext)
def create(asked: Asked, request: ms.CreateContext) -> ms.Reply:
    """Create an empty context."""
    return ms.Reply(value=open_context(asked, request).number)


def open_context(asked: Asked, request: ms.CreateContext) -> DeviceContext:
    """Create a context, or raise if its options are wrong."""
    if not 1 <= request.queue_depth <= MAX_QUEUE_DEPTH:
        raise InvalidArgument(
            f"queue depth {request.queue_depth}; expected 1 to {MAX_QUEUE_DEPTH}",
            st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
        )
    number, session = asked.core.new_number(), asked.session
    context = DeviceContext(number, session, request.priority, request.queue_depth)
    context.tenant.anywhere = request.stored
    context.io_room, context.keep_io_room = request.io_room, request.keep_io_room
    context.prepare_only, context.shares_updates = request.prepare_only, request.shares_updates
    if request.group is not None:
        context.group = _group(asked, number, request.group, request.priority)
        context.tenant.group = context.group.spill
    session.contexts[number] = context
    return context


def _group(asked: Asked, number: int, wanted: ms.Group, priority: int) -> DeviceGroup:
    """A new group, one that another context began, or the group of the context's list."""
    backup = asked.session.ledger.backup_bytes
    if wanted.list is not None:
        groups = asked.session.groups
        key = (wanted.list, priority if wanted.concurrent else None)
        if key not in groups:
            groups[key] = DeviceGroup(number, 0, key[1], backup)
        return groups[key]
    if wanted.first is None:
        return DeviceGroup(number, wanted.nbytes, priority if wanted.concurrent else None, backup)
    first = find(asked.session.contexts, wanted.first, "context")
    group = first.group
    if group is None or (group.priority is not None) != wanted.concurrent:
        raise InvalidArgument(
            f"context {first.number} began no {'concurrent ' if wanted.concurrent else ''}group that others can"
            " join; register it with a max_spill_fill_buffer first",
            st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
        )
    if wanted.nbytes and wanted.nbytes != group.spill.nbytes:
        raise InvalidArgument(
            f"max_spill_fill_buffer is {wanted.nbytes}, that of the group {group.spill.nbytes}; give the group's"
            " size or none",
            st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
        )
    _check_priority(group, priority)
    return group


def check_group_priority(context: DeviceContext, priorities: Sequence[int]) -> None:
    """Refuse priorities other than that of the context's group."""
    for priority in priorities:
        _check_priority(context.group, priority)


def _check_priority(group: DeviceGroup | None, priority: int) -> None:
    """All contexts and graphs of a concurrent group have one priority."""
    if group is not None and group.priority is not None and priority != group.priority:
        raise InvalidArgument(
            f"priority {priority}; contexts and graphs of a group that shares resources while they run at the same"
            f" time all have its priority, {group.priority}",
            st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
        )


@handles(ms.FreeContext)
def free(asked: Asked, request: ms.FreeContext) -> ms.Reply:
    """Free a context. The reply names its jobs that are still computed, on another thread or by a library."""
    context = find(asked.session.contexts, request.context, "context")
    close_context(asked.core, context)
    running = [job.client_job for job in asked.session.jobs.values() if job.graph.context is context]
    return ms.Reply(info={"running": running})


def close_context(core: DeviceCore, context: DeviceContext) -> None:
    """Close a context with all its graphs and memory, and cancel its tasks."""
    session = context.session
    core.stage(session, busy=True)
    before = session.ledger.weights
    for task in session.tasks:
        if task.owner is context:
            task.cancel()
    if context.switcher is not None:
        context.switcher.close()
    for graph in list(context.graphs.values()):
        core.free_graph(session, graph)
    for memory in list(context.memories):
        session.unmap(memory)
    context.weights.clear()
    session.ledger.leave(context.tenant)
    del session.contexts[context.number]
    if context.group is not None:
        used = [other.group for other in session.contexts.values()]
        session.groups = {key: group for key, group in session.groups.items() if group in used}
    core.stage(session)
    core.give_back(context, before - session.ledger.weights)


@handles(ms.SetContextPriority)
def set_priority(asked: Asked, request: ms.SetContextPriority) -> ms.Reply:
    """Set the priority of all graphs of a context."""
    context = find(asked.session.contexts, request.context, "context")
    check_group_priority(context, [request.priority])
    _change(asked, list(context.graphs.values()), request.priority, st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT)
    context.priority = request.priority
    return ms.Reply()


@handles(ms.SetPriority)
def set_graph_priority(asked: Asked, request: ms.SetPriority) -> ms.Reply:
    """Set the priority of one graph."""
    graph = find(asked.session.graphs, request.graph, "graph")
    check_group_priority(graph.context, [request.priority])
    _change(asked, [graph], request.priority, st.QNN_GRAPH_ERROR_INVALID_ARGUMENT)
    return ms.Reply()


@handles(ms.SetHvxThreads)
def set_hvx_threads(asked: Asked, request: ms.SetHvxThreads) -> ms.Reply:
    """Set the HVX threads of one graph."""
    graph, loop = find(asked.session.graphs, request.graph, "graph"), asked.core.loop
    with error_context(graph=graph.name):
        if graph.started:
            raise WrongState(
                "HVX threads cannot be changed after the first execution", st.QNN_GRAPH_ERROR_INVALID_ARGUMENT
            )
        event = ThreadsChanged(t=loop.clock.now(), client=graph.number, hvx=request.hvx_threads)
        refused = [action for action in loop.handle(event) if isinstance(action, Refuse)]
        if refused:
            raise WrongState(refused[0].reason, st.QNN_GRAPH_ERROR_INVALID_ARGUMENT)
    return ms.Reply()


def _change(asked: Asked, graphs: list[DeviceGraph | DeviceApp], priority: int, refused: Status) -> None:
    # All or none: a context keeps its old priority if one of its graphs has already run.
    for graph in graphs:
        if graph.queued_started:
            raise WrongState(
                f"priority of graph {graph.name!r} cannot change after its first asynchronous execution started",
                refused,
            )
    loop = asked.core.loop
    now = loop.clock.now()
    for graph in graphs:
        loop.handle(PriorityChanged(t=now, client=graph.number, priority=priority))


@handles(ms.RegisterMemory, takes_descriptor=True)
def register(asked: Asked, request: ms.RegisterMemory) -> ms.Reply:
    """Map memory, if the session may hold that much."""
    context = find(asked.session.contexts, request.context, "context")
    if request.use and context.switcher is None:
        raise UnsupportedFeature(
            f"memory as the {request.use} of a context that switches no graphs; create it from a binary with"
            " is_persistent_binary and memory_limit_hint, or go on without: the device has its own",
            st.QNN_MEM_ERROR_UNSUPPORTED_MEMTYPE,
        )
    buffer = asked.memory(request.nbytes)
    number = asked.core.new_number()
    try:
        asked.session.map(number, context, buffer)
    except BaseException:
        buffer.close()
        raise
    if request.use and context.switcher is not None:
        try:
            context.switcher.lend(request.use, LentBuffer(number, buffer))
        except BaseException:
            asked.session.unmap(number)
            raise
    return ms.Reply(value=number)


@handles(ms.DeregisterMemory)
def deregister(asked: Asked, request: ms.DeregisterMemory) -> ms.Reply:
    """Unmap memory."""
    for context in asked.session.contexts.values():
        if context.switcher is not None:
            context.switcher.take_back(request.memory)
    asked.session.unmap(request.memory)
    return ms.Reply()
