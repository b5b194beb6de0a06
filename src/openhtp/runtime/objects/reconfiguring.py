"""Options of a graph that are changed after it was made: any while it is built, few of them later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, WrongState, error_context
from openhtp.hw.catalog import find_soc
from openhtp.options import GRAPH, Changeable, Option, OptionValues as Options
from openhtp.rpc import messages as ms
from openhtp.runtime.objects.argument_checks import options_within
from openhtp.runtime.objects.context_options import check_graph
from openhtp.runtime.objects.lifecycle import State

if TYPE_CHECKING:
    from openhtp.runtime.objects.graph import Graph

# Whoever reads these from a binary of the graph has to find what they are now.
STORED = frozenset(row.name for row in GRAPH.rows if row.changes is Changeable.BEFORE_EXECUTION)


def reconfigured(graph: Graph, given: Mapping[str, object]) -> Options:
    """The graph's options with those that are given, None being none; its device has agreed to them."""
    wanted = {name: value for name, value in given.items() if value is not None}
    with error_context(graph=graph.name):
        if graph._life.state is State.BUILDING:
            return _chosen_anew(graph, wanted)
        options = graph._options.replace(**wanted)
        for name in wanted:
            _check_late(graph, GRAPH.option(name), options)
        if graph._life.state is State.DEFERRED:
            _check_threads(graph, options)
        if graph._life.state is State.FINALIZED:
            # Threads first: what can refuse the priority afterwards has refused them, too.
            if "hvx_threads" in wanted:
                tell_threads(graph, options)
            if "priority" in wanted:
                request = ms.SetPriority(graph=graph._number, priority=int(options.priority))
                graph.context._link.request(request)
    return options


def tell_threads(graph: Graph, options: Options) -> None:
    """Have the device reserve other HVX threads than the graph was loaded with."""
    graph.context._link.request(ms.SetHvxThreads(graph=graph._number, hvx_threads=options.hvx_threads))


def _check_threads(graph: Graph, options: Options) -> None:
    """Before the device is asked, which is when the graph is loaded: too late to refuse it alone."""
    soc = find_soc(graph.context.device.soc)
    if (options.hvx_threads or 0) > soc.hvx:
        raise InvalidArgument(
            f"graph option hvx_threads is {options.hvx_threads}; {soc.name} has {soc.hvx} HVX threads",
            st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
        )


def _chosen_anew(graph: Graph, wanted: Mapping[str, object]) -> Options:
    """As if the graph were created now."""
    present, context = dict(graph._options), graph.context
    for name in wanted:
        row = GRAPH.option(name)
        for replaced in (row.same_as, *row.excludes):
            present.pop(replaced or name, None)
    arch, platform = find_soc(context.device.soc).arch, context.device._platform
    options = GRAPH.read({**present, **wanted}, arch=arch, platform=platform)
    others = [other._options for other in list(context._graphs.values()) if other is not graph]
    check_graph(context._chosen, graph.name, options, others)
    return options_within(context, graph.name, options)


def _check_late(graph: Graph, row: Option, options: Options) -> None:
    """Refuse what preparation has fixed."""
    if row.changes is Changeable.NEVER:
        raise WrongState(
            f"graph option {row.name} is fixed when a graph is finalized; set it before",
            st.QNN_GRAPH_ERROR_GRAPH_FINALIZED,
        )
    was_on = graph._options[row.name] or row.name in graph._changed
    if row.changes is Changeable.OFF_AND_ON and options[row.name] and not was_on:
        raise WrongState(
            f"graph option {row.name} was off when the graph was finalized, and can only be turned on again",
            st.QNN_GRAPH_ERROR_GRAPH_FINALIZED,
        )
