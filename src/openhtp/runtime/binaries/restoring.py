"""Graphs of a context binary come to life: at once, or, where that was deferred, when they are finalized."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from openhtp.core.units import MIB
from openhtp.program.binary import ContextBinary
from openhtp.records.profile import Method
from openhtp.rpc import messages as ms
from openhtp.runtime.binaries.load import Manner, load_graphs, stored
from openhtp.runtime.binaries.opening import go_on
from openhtp.runtime.calls.long_call import OF_GRAPH, carrying
from openhtp.runtime.calls.sheet import Fill, Noted
from openhtp.runtime.links.served import serving
from openhtp.runtime.objects.argument_checks import check_handle
from openhtp.runtime.objects.graph import Graph
from openhtp.runtime.objects.lifecycle import State
from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.profile_events import finalize_events
from openhtp.runtime.objects.signal import Signal
from openhtp.runtime.objects.tensor import Tensor

if TYPE_CHECKING:
    from openhtp.runtime.calls.long_call import Stop
    from openhtp.runtime.objects.context import Context

log = logging.getLogger(__name__)


def restore(
    context: Context, binary: ContextBinary, enabled: Sequence[str], opening: ms.CreateContext, stop: Stop | None
) -> None:
    """Open a context with the graphs of a binary, all or nothing.

    Each keeps its own priority unless one is given for the context.
    """
    context._restored = True
    context._binary = binary
    for name in binary.graph_names:
        graph = _known(context, binary, name)
        if name not in enabled:
            graph._life.finish("finalize", State.DISABLED)
        elif context._chosen.defer_graph_init:
            graph._life.finish("finalize", State.DEFERRED)
    if enabled and not context._chosen.defer_graph_init:
        _load(context, binary, enabled, stop, opening)
    else:
        context._open(opening, stop)


def finalize_deferred(graphs: Sequence[Graph], profile: Profile | None, signal: Signal | None) -> None:
    """Load graphs of one context that were left for later, all or none."""
    context, names = graphs[0].context, [graph.name for graph in graphs]
    context._life.require("use")
    check_handle("profile", profile, Profile)
    check_handle("signal", signal, Signal)
    assert context._binary is not None
    binary = context._binary

    def load(fill: Fill | None, stop: Stop | None) -> None:
        with serving() as served:
            begin = context._link.now()
            _load(context, binary, names, stop)
            if fill is not None and profile is not None:
                events = finalize_events(profile.level, begin, begin, context._link.now(), served)
                fill(Noted(Method.FINALIZE, names[-1], events))

    carrying(profile, signal, f"finalizing {', '.join(map(repr, names))}", OF_GRAPH, load)


def _known(context: Context, binary: ContextBinary, name: str) -> Graph:
    """A graph as the binary describes it, with nothing on the device yet."""
    packed = binary.packed(name)
    about = packed.info()
    options, priority = about.options, context._chosen.priority
    if priority is not None:
        options = options.replace(priority=priority)
    graph = context._graphs[name] = Graph(context, name, options)
    graph._builder = None
    ids = packed.tensor_ids
    for spec in (*about.inputs, *about.outputs):
        # Ids are kept, so that tensors of whoever built the binary still fit.
        number = ids.get(spec.name) or context._next_tensor_id()
        graph._tensors[spec.name] = Tensor(number, spec, graph)
    return graph


def _load(
    context: Context,
    binary: ContextBinary,
    names: Sequence[str],
    stop: Stop | None,
    opening: ms.CreateContext | None = None,
) -> None:
    chosen, external = context._chosen, context._external
    switching = chosen.memory_limit_hint > 0
    manner = Manner(
        chosen.file_read_memory_budget_in_mb * MIB,
        accelerated=chosen.init_acceleration,
        switching=switching,
        retained=(chosen.graph_retention_order or ()) if switching else (),
        spill_fill_buffer=chosen.spill_fill_buffer,
        weights_buffer=chosen.weights_buffer,
    )
    if external is not None:
        external.collect(binary, names)
    wanted = [(context._graphs[name], binary.packed(name)) for name in names]
    sending = stored(binary, names, external, go_on if stop is None else stop.check)
    load_graphs(context, sending, wanted, stop, manner, opening)
    # Graphs that are switched are not all loaded yet, and the vendor's library compiles everything by itself.
    tells = not switching and context.device.backend.library is None and binary.info.soc == context.device.soc
    outdated = [name for name in names if tells and context._graphs[name].was_outdated]
    if outdated:
        log.warning(
            "what the context binary has prepared of %s was made by another version of openhtp, user or kind of"
            " machine: it is compiled again, which takes longer; make the binary again here",
            ", ".join(map(repr, outdated)),
        )
    if external is not None:
        external.sent()
