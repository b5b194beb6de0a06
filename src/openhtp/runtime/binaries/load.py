"""Contexts from binaries: graphs are loaded at once, or, if that was deferred, when they are finalized."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openhtp.core.units import MIB
from openhtp.program.binary import ContextBinary
from openhtp.records.profile import Method
from openhtp.rpc import messages as ms
from openhtp.runtime.binaries.opening import go_on
from openhtp.runtime.binaries.send import load_graphs, stored
from openhtp.runtime.calls.long_call import OF_GRAPH, carrying
from openhtp.runtime.calls.sheet import Fill, NotedCall
from openhtp.runtime.links.link import serving
from openhtp.runtime.objects.argument_checks import check_handle
from openhtp.runtime.objects.chosen_options import within
from openhtp.runtime.objects.graph import Graph, order_of
from openhtp.runtime.objects.open_context import OpenContext
from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.profile_events import finalize_events
from openhtp.runtime.objects.signal import Signal

if TYPE_CHECKING:
    from openhtp.runtime.binaries.data_provider import ClientBuffers
    from openhtp.runtime.calls.long_call import CallStop

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredContext:
    """The source of a context: a binary, the names of its enabled graphs, and buffers of the client."""

    binary: ContextBinary
    enabled: Sequence[str]
    client_buffers: ClientBuffers | None = None


def open_stored(
    context: OpenContext, source: StoredContext, opening: ms.CreateContext, stop: CallStop | None
) -> None:
    """Open a context with the graphs of a binary, all or nothing.

    Each graph keeps its own priority unless one is given for the context.
    """
    for name in source.binary.graph_names:
        packed = source.binary.packed(name)
        options, priority = packed.info().options, context.options.priority
        if priority is not None:
            options = options.replace(priority=priority)
        context.graphs[name] = Graph(
            context, name, within(context, name, options), packed=packed, enabled=name in source.enabled
        )
    if source.enabled and not context.options.defer_graph_init:
        _load(context, source.binary, source.enabled, stop, opening)
    else:
        context.make_on_device(opening, stop)


def finalize_deferred(
    context: OpenContext, graphs: Sequence[Graph], profile: Profile | None, signal: Signal | None
) -> None:
    """Load deferred graphs of one context, all or none."""
    check_handle("profile", profile, Profile)
    check_handle("signal", signal, Signal)
    binary, names = context.binary, [graph.name for graph in graphs]
    assert binary is not None  # it has deferred graphs

    def load(fill: Fill | None, stop: CallStop | None) -> None:
        with serving() as served:
            begin = context.link.now()
            _load(context, binary, names, stop)
            if fill is not None and profile is not None:
                events = finalize_events(profile.level, begin, begin, context.link.now(), served)
                fill(NotedCall(Method.FINALIZE, names[-1], events))

    carrying(profile, signal, f"finalizing {', '.join(map(repr, names))}", OF_GRAPH, load)


def _load(
    context: OpenContext,
    binary: ContextBinary,
    names: Sequence[str],
    stop: CallStop | None,
    opening: ms.CreateContext | None = None,
) -> None:
    chosen, buffers = context.options, context.client_buffers
    switching = chosen.memory_limit_hint > 0
    retained = (chosen.graph_retention_order or ()) if switching else ()
    options = ms.LoadOptions(
        read_budget=chosen.file_read_memory_budget_in_mb * MIB or None,
        accelerated=chosen.init_acceleration,
        switching=switching,
        retained=[binary.graph_names.index(name) for name in retained],
        spill_fill_buffer=chosen.spill_fill_buffer,
        weights_buffer=chosen.weights_buffer,
    )
    if buffers is not None:
        buffers.collect(binary, names)
    orders = [order_of(context.graphs[name], binary.packed(name)) for name in names]
    sending = stored(binary, names, buffers, go_on if stop is None else stop.check)
    load_graphs(context, sending, orders, stop, options, opening)
    # Graphs that are switched are not all loaded yet, and the vendor's library compiles everything by itself.
    comparable = not switching and context.device.backend.library is None and binary.info.soc == context.device.soc
    outdated = [name for name in names if comparable and context.graphs[name].was_outdated]
    if outdated:
        log.warning(
            "the prepared form of %s in the context binary was made by another version of openhtp, user or kind of"
            " machine: it is compiled again, which takes longer; make the binary again here",
            ", ".join(map(repr, outdated)),
        )
    if buffers is not None:
        buffers.sent()
