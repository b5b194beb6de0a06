"""Contexts come and go, and how urgent what is in them is."""

from __future__ import annotations

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, WrongState
from openhtp.core.limits import MAX_QUEUE_DEPTH
from openhtp.device.contexts import DeviceApp, DeviceContext, DeviceGraph
from openhtp.device.requests.table import Asked, handles
from openhtp.device.sessions import find
from openhtp.rpc import messages as ms
from openhtp.sched.actions import Refuse
from openhtp.sched.events import PriorityChanged


@handles(ms.CreateContext)
def create(asked: Asked, request: ms.CreateContext) -> ms.Reply:
    """A context with nothing in it."""
    if not 1 <= request.queue_depth <= MAX_QUEUE_DEPTH:
        raise InvalidArgument(
            f"queue depth {request.queue_depth}; expected 1 to {MAX_QUEUE_DEPTH}",
            st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
        )
    number, session = asked.core.new_number(), asked.session
    session.contexts[number] = DeviceContext(number, session, request.priority, request.queue_depth)
    return ms.Reply(value=number)


@handles(ms.FreeContext)
def free(asked: Asked, request: ms.FreeContext) -> ms.Reply:
    """A context goes, with all that is in it and all that was to come."""
    session = asked.session
    context = find(session.contexts, request.context, "context")
    for task in session.tasks:
        if task.context is context:
            task.cancel()
    for graph in list(context.graphs.values()):
        asked.core.free_graph(session, graph)
    for memory in list(context.memories):
        session.unmap(memory)
    while context.weights:
        context.weights.pop().give_back()
    del session.contexts[context.number]
    return ms.Reply()


@handles(ms.SetContextPriority)
def set_priority(asked: Asked, request: ms.SetContextPriority) -> ms.Reply:
    """Of all graphs of a context."""
    context = find(asked.session.contexts, request.context, "context")
    _change(asked, list(context.graphs.values()), request.priority)
    context.priority = request.priority
    return ms.Reply()


@handles(ms.SetPriority)
def set_graph_priority(asked: Asked, request: ms.SetPriority) -> ms.Reply:
    """Of one graph."""
    _change(asked, [find(asked.session.graphs, request.graph, "graph")], request.priority)
    return ms.Reply()


def _change(asked: Asked, graphs: list[DeviceGraph | DeviceApp], priority: int) -> None:
    # All or none: a context keeps its old priority if one of its graphs has already run.
    for graph in graphs:
        if graph.started:
            raise WrongState(
                f"priority of graph {graph.name!r} cannot change after its first execution started",
                st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
            )
    loop = asked.core.loop
    now = loop.clock.now()
    for graph in graphs:
        actions = loop.handle(PriorityChanged(t=now, client=graph.number, priority=priority))
        refused = [action for action in actions if isinstance(action, Refuse)]
        if refused:
            raise WrongState(refused[0].reason, st.QNN_GRAPH_ERROR_INVALID_ARGUMENT)
