"""Chosen options of contexts and graphs: what a config adds, which go together, which may change later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from openhtp.core import status as st
from openhtp.core.checks import shown
from openhtp.core.errors import InvalidArgument, UnsupportedFeature, WrongState
from openhtp.core.limits import MAX_COMPRESSED_GRAPHS, MAX_SHARED_WEIGHT_GRAPHS
from openhtp.core.precision import FloatPrecision
from openhtp.core.telling import warn_once
from openhtp.core.units import MIB, bytes_in_words
from openhtp.core.value_kinds import GroupRegistration
from openhtp.hw.catalog import find_soc
from openhtp.hw.soc import ANY_PLATFORM
from openhtp.options import (
    CONTEXT,
    GRAPH,
    Arguments,
    Changeable,
    ContextOrigin,
    OptionValues,
)
from openhtp.options.context import (
    CONCURRENT,
    CONCURRENT_ARCH,
    CONCURRENT_PLATFORMS,
    SHARING_WITH_VA,
)
from openhtp.rpc import messages as ms

if TYPE_CHECKING:
    from openhtp.config import BackendConfig, Source
    from openhtp.hw.soc import SocSpec
    from openhtp.program.binary import ContextBinary
    from openhtp.runtime.objects.device import Device
    from openhtp.runtime.objects.open_context import OpenContext


log = logging.getLogger(__name__)

_VA_ARCH = 73
_QUEUE_ARCH = 73
# The documents have contexts from a list of binaries on mobile platforms and Windows.
_LIST_PLATFORMS = ("android", "windows")
# They have buffers of the client's own, by a callback, on Android.
CALLBACK_PLATFORMS = ("android",)
# Defaults of the vendor's pages.
DOCUMENTED_SOC = "SM8350"
_DOCUMENTED_VTCM_MB = 4


class ExtensionsConfig:
    """A backend extensions config of a device: options for everything that is made there.

    Options of a call win over the config, and the config wins over defaults. Without a config, and with our
    defaults, nothing is added.
    """

    __slots__ = ("_config", "_documented")

    def __init__(self, source: Source | None, *, documented: bool = False) -> None:
        """``documented``: the defaults are those of the vendor's pages."""
        self._config: BackendConfig | None = None
        self._documented = documented
        if source is not None:
            from openhtp.config import as_config  # only a config needs it

            self._config = as_config(source)

    def device(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Options of the device."""
        by_default = {"soc": DOCUMENTED_SOC} if self._documented else {}
        return {**by_default, **({} if self._config is None else self._config.device_options()), **chosen}

    def context(self, chosen: Mapping[str, Any], origin: ContextOrigin) -> dict[str, Any]:
        """Options of a context of this origin."""
        return {**({} if self._config is None else self._config.context_options(origin)), **chosen}

    def graph(self, name: str, chosen: Mapping[str, Any], soc: SocSpec | None = None) -> dict[str, Any]:
        """Options of a graph.

        A value in one unit replaces the config's value in another unit. ``soc`` limits the default VTCM to what
        this chip has.
        """
        options = dict(chosen)
        if self._config is not None:
            options = _beneath(options, self._config.graph_options(name))
        if self._documented:
            vtcm_mb = _DOCUMENTED_VTCM_MB if soc is None else min(_DOCUMENTED_VTCM_MB, soc.vtcm_mb)
            options = _beneath(options, {"vtcm_mb": vtcm_mb, "precision": FloatPrecision.FLOAT32})
        return options

    def vote(self, device: Device) -> None:
        """Vote as the config says."""
        if self._config is not None:
            self._config.vote(device)


def _beneath(chosen: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """``options``, and those of ``others`` that they do not have in any unit."""
    units = {GRAPH.option(option).same_as or option for option in chosen if option in GRAPH}
    more = {name: value for name, value in others.items() if (GRAPH.option(name).same_as or name) not in units}
    return {**more, **chosen}


def read_options(options: Arguments, origin: ContextOrigin, soc: SocSpec, platform: str) -> OptionValues:
    """Options of a context of this origin on such a device."""
    chosen = CONTEXT.read(options, arch=soc.arch, platform=platform, origin=origin)
    if chosen.share_resources:
        _check_sharing(chosen.share_resources_optimization_type, soc, platform)
    if origin is ContextOrigin.LIST:
        # No warning for every list of a user who names no platform.
        check_platform(str(origin), _LIST_PLATFORMS, platform, logging.INFO)
    if "queue_depth" in options:
        _tell_where_queues_are(soc, platform)
    return chosen


def _tell_where_queues_are(soc: SocSpec, platform: str) -> None:
    """Every device here has queues; a user who names a system that has none is warned."""
    if platform == "qnx" and soc.arch >= _QUEUE_ARCH:
        return
    log.log(
        logging.INFO if platform in (ANY_PLATFORM, "qnx") else logging.WARNING,
        "the documents have asynchronous execution on QNX, from Hexagon v%d on; here %s, %s, on %s has it, too",
        _QUEUE_ARCH,
        soc.name,
        soc.arch_name,
        platform,
    )


def _check_sharing(kind: str, soc: SocSpec, platform: str) -> None:
    """Some kinds of sharing need newer chips, and one a platform."""
    since = {SHARING_WITH_VA: _VA_ARCH, CONCURRENT: CONCURRENT_ARCH}.get(kind, 0)
    what = f"share_resources_optimization_type {kind}"
    if soc.arch < since:
        raise UnsupportedFeature(
            f"{what} needs a Hexagon v{since} or newer; this is {soc.name}, {soc.arch_name}",
            st.QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE,
        )
    if kind == CONCURRENT:
        check_platform(what, CONCURRENT_PLATFORMS, platform)


def check_platform(what: str, platforms: Sequence[str], platform: str, level: int = logging.WARNING) -> None:
    """Refuse what a platform does not have; a device whose platform was not named has it, and tells so once."""
    where = f"on {' and '.join(platforms)} only"
    if platform == ANY_PLATFORM:
        words = f"the documents have {what} {where}; this device has it, because its platform was not named"
        warn_once(log, (what, platform), words, level)
    elif platform not in platforms:
        raise UnsupportedFeature(
            f"{what} exists {where}; this device's platform is {platform}",
            st.QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE,
        )


def create_message(
    chosen: OptionValues,
    priority: int,
    binary: ContextBinary | None,
    *,
    list_number: int,
    number_of: Callable[[object], int],
) -> ms.CreateContext:
    """The request that opens the context.

    ``number_of`` gives the number of a context that exists already. ``binary`` is the source of the context.
    ``list_number`` distinguishes the contexts of one list from those of others.
    """
    va_sharing = chosen.share_resources and chosen.share_resources_optimization_type == SHARING_WITH_VA
    # Nobody can register buffers between contexts of a list: their memory is kept until they are all made.
    return ms.CreateContext(
        queue_depth=chosen.queue_depth,
        priority=priority,
        stored=binary is not None,
        io_room=chosen.io_memory_estimation,
        keep_io_room=va_sharing or bool(list_number and chosen.io_memory_estimation),
        prepare_only=chosen.prepare_only,
        group=_group(chosen, list_number, number_of),
        shares_updates=binary is not None and binary.info.lora_weight_sharing,
    )


def _group(chosen: OptionValues, list_number: int, number_of: Callable[[object], int]) -> ms.Group | None:
    if chosen.share_resources:
        return ms.Group(list=list_number, concurrent=chosen.share_resources_optimization_type == CONCURRENT)
    concurrent: GroupRegistration | None = chosen.register_concurrent_resource_sharing
    registration = concurrent or chosen.register_multi_contexts
    if registration is None:
        return None
    first = None if registration.first is None else number_of(registration.first)
    return ms.Group(first=first, nbytes=registration.max_spill_fill_buffer, concurrent=concurrent is not None)


def enabled_graphs(chosen: OptionValues, binary: ContextBinary) -> tuple[str, ...]:
    """Graphs of a binary that are to be there, in the order in which they were named. Checks all names."""
    known = binary.graph_names
    enabled = known if chosen.enable_graphs is None else tuple(dict.fromkeys(chosen.enable_graphs))
    for name in enabled:
        if name not in known:
            raise _unknown("enable_graphs", name, "the binary has", known)
    retained = chosen.graph_retention_order or ()
    for number, name in enumerate(retained):
        if name not in enabled:
            raise _unknown("graph_retention_order", name, "graphs that are enabled are", enabled)
        if name in retained[:number]:
            raise InvalidArgument(
                f"graph_retention_order names {shown(name)} twice; name each graph once, the most important first",
                st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
            )
    if chosen.register_multi_contexts or chosen.register_concurrent_resource_sharing or chosen.share_resources:
        for name in enabled:
            options = binary.graph_info(name).options
            if options.dlbc or options.dlbc_weights:
                raise unsupported(name, "has dlbc or dlbc_weights, which do not go with shared spill-fill buffers")
    return enabled


def _unknown(option: str, name: str, has: str, known: tuple[str, ...]) -> InvalidArgument:
    names = ", ".join(map(repr, known))
    return InvalidArgument(f"{option} names {shown(name)}; {has} {names}", st.QNN_CONTEXT_ERROR_INVALID_CONFIG)


def new_options(
    context: OpenContext, name: str, wanted: Mapping[str, object], others: Sequence[OptionValues]
) -> OptionValues:
    """Options of a new graph in this context, checked against the graphs that are there."""
    device = context.device
    options = GRAPH.read(wanted, arch=find_soc(device.soc).arch, platform=device.platform)
    _check_vtcm(options, find_soc(device.soc))
    check_threads(options, find_soc(device.soc))
    _check_beside(context.options, name, options, others)
    if context.options.weight_sharing_enabled:
        _check_shared_vtcm(name, options, others, find_soc(device.soc))
    return within(context, name, options)


def within(context: OpenContext, name: str, options: OptionValues) -> OptionValues:
    """A graph's options, checked against its device, with the context's priority if it has none of its own.

    A binary's graph runs with the HVX threads that there are, as it is compiled again for this chip.
    """
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
    threads = find_soc(device.soc).hvx
    if (options.hvx_threads or 0) > threads:  # of a new graph they were refused
        log.warning(
            "graph %r was prepared for %d HVX threads; %s has %d and runs it with those",
            name,
            options.hvx_threads,
            device.soc,
            threads,
        )
        options = options.replace(hvx_threads=threads)
    return options if options.priority is not None else options.replace(priority=context.priority)


def _check_vtcm(options: OptionValues, soc: SocSpec) -> None:
    """Refuse VTCM in steps below a megabyte on earlier chips, where a binary with such steps is compiled again."""
    if (options.vtcm_bytes or 0) % soc.vtcm_granule_bytes:
        raise UnsupportedFeature(
            f"graph option vtcm_bytes is {options.vtcm_bytes} bytes; VTCM comes in bytes from v81 on, and"
            f" {soc.name} is {soc.arch_name}: expected whole MB",
            st.QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE,
        )


def changed_draft(present: OptionValues, wanted: Mapping[str, object]) -> dict[str, object]:
    """Changed options of a graph that is still built, checked as if it were created now."""
    kept = dict(present)
    for name in wanted:
        row = GRAPH.option(name)
        for replaced in (row.same_as or row.name, *row.excludes):
            kept.pop(replaced, None)
    return {**kept, **wanted}


def check_late(
    present: OptionValues, changed: set[str], options: OptionValues, wanted: Mapping[str, object]
) -> None:
    """Refuse options that preparation has fixed. ``changed`` are options that have changed since preparation."""
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


def check_threads(options: OptionValues, soc: SocSpec) -> None:
    """Refuse too many HVX threads early: when the graph is loaded, it is too late to refuse this graph alone."""
    if (options.hvx_threads or 0) > soc.hvx:
        raise InvalidArgument(
            f"graph option hvx_threads is {options.hvx_threads}; {soc.name} has {soc.hvx} HVX threads",
            st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
        )


def _check_beside(context: OptionValues, name: str, graph: OptionValues, others: Sequence[OptionValues]) -> None:
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


def _check_shared_vtcm(name: str, graph: OptionValues, others: Sequence[OptionValues], soc: SocSpec) -> None:
    """Refuse a graph that has another size of VTCM than those that it would share weights with."""
    whole = soc.vtcm_mb * MIB
    own, *sizes = (options.vtcm_bytes or whole for options in (graph, *others))
    different = next((size for size in sizes if size != own), None)
    if different is not None:
        raise unsupported(
            name,
            f"has {bytes_in_words(own)} of VTCM and another one {bytes_in_words(different)}:"
            " with weight_sharing_enabled they cannot both be",
        )


def unsupported(name: str, why: str) -> UnsupportedFeature:
    """The error about a graph that cannot be in its context."""
    return UnsupportedFeature(
        f"graph {shown(name)} {why} in one context; put it into another", st.QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE
    )
