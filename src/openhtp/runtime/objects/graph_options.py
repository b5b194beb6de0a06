"""Options of a graph within its context: which go together, and which can be changed after it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from openhtp.core import status as st
from openhtp.core.checks import shown
from openhtp.core.errors import InvalidArgument, UnsupportedFeature, WrongState
from openhtp.core.limits import MAX_COMPRESSED_GRAPHS, MAX_SHARED_WEIGHT_GRAPHS
from openhtp.hw.catalog import find_soc
from openhtp.options import GRAPH, Changeable, OptionValues as Options

if TYPE_CHECKING:
    from openhtp.hw.soc import SocSpec
    from openhtp.runtime.objects.open_context import OpenContext


def new_options(
    context: OpenContext, name: str, wanted: Mapping[str, object], others: Sequence[Options]
) -> Options:
    """What is wanted of a graph that is to be in this context beside the others."""
    device = context.device
    options = GRAPH.read(wanted, arch=find_soc(device.soc).arch, platform=device.platform)
    _check_vtcm(options, find_soc(device.soc))
    _check_beside(context.options, name, options, others)
    return within(context, name, options)


def within(context: OpenContext, name: str, options: Options) -> Options:
    """A graph's options as its context and device have them: on a core that is there, and with a priority."""
    device = context.device
    if options.core >= device.cores:
        raise InvalidArgument(
            f"graph {name!r} is for core {options.core}; {device.soc} has {device.cores}, counted from 0",
            st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
        )
    if options.num_cores > device.cores:
        raise InvalidArgument(
            f"graph option num_cores is {options.num_cores}; {device.soc} has {device.cores}",
            st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
        )
    return options if options.priority is not None else options.replace(priority=context.priority)


def _check_vtcm(options: Options, soc: SocSpec) -> None:
    """Steps below a megabyte are of later chips; a binary that has them is compiled again on earlier ones."""
    if (options.vtcm_bytes or 0) % soc.vtcm_granule_bytes:
        raise UnsupportedFeature(
            f"graph option vtcm_bytes is {options.vtcm_bytes} bytes; VTCM comes in bytes from v81 on, and"
            f" {soc.name} is {soc.arch_name}: expected whole MB",
            st.QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE,
        )


def changed_draft(present: Options, wanted: Mapping[str, object]) -> dict[str, object]:
    """What is wanted of a graph that is still built, as if it were created now."""
    kept = dict(present)
    for name in wanted:
        row = GRAPH.option(name)
        for replaced in (row.same_as or row.name, *row.excludes):
            kept.pop(replaced, None)
    return {**kept, **wanted}


def check_late(present: Options, changed: set[str], options: Options, wanted: Mapping[str, object]) -> None:
    """Refuse what preparation has fixed. ``changed`` are options that were others when it read them."""
    for name in wanted:
        row = GRAPH.option(name)
        if row.changes is Changeable.NEVER:
            raise WrongState(
                f"graph option {row.name} is fixed when a graph is finalized; set it before",
                st.QNN_GRAPH_ERROR_GRAPH_FINALIZED,
            )
        was_on = present[row.name] or row.name in changed
        if row.changes is Changeable.OFF_AND_ON and options[row.name] and not was_on:
            raise WrongState(
                f"graph option {row.name} was off when the graph was finalized, and can only be turned on again",
                st.QNN_GRAPH_ERROR_GRAPH_FINALIZED,
            )


def check_threads(options: Options, soc: SocSpec) -> None:
    """Before the device is asked, which is when the graph is loaded: too late to refuse it alone."""
    if (options.hvx_threads or 0) > soc.hvx:
        raise InvalidArgument(
            f"graph option hvx_threads is {options.hvx_threads}; {soc.name} has {soc.hvx} HVX threads",
            st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
        )


def _check_beside(context: Options, name: str, graph: Options, others: Sequence[Options]) -> None:
    """Refuse a graph that its context cannot have beside the others: compression and sharing have limits."""
    compressed = [options for options in (*others, graph) if options.dlbc or options.dlbc_weights]
    if context.weight_sharing_enabled:
        if compressed:
            raise unsupported(name, "has dlbc or dlbc_weights, which do not go with weight_sharing_enabled")
        if len(others) >= MAX_SHARED_WEIGHT_GRAPHS:
            raise unsupported(
                name, f"is one too many: with weight_sharing_enabled {MAX_SHARED_WEIGHT_GRAPHS} can be"
            )
    if compressed:
        most = MAX_COMPRESSED_GRAPHS
        if any(options.dlbc for options in compressed) and any(options.dlbc_weights for options in compressed):
            most //= 2
        if len(others) >= most:
            raise unsupported(name, f"is one too many: with this compression (dlbc, dlbc_weights) {most} can be")


def unsupported(name: str, why: str) -> UnsupportedFeature:
    """The error about a graph that cannot be in its context."""
    return UnsupportedFeature(
        f"graph {shown(name)} {why} in one context; put it into another", st.QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE
    )
