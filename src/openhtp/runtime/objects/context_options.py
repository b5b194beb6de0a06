"""What was chosen for a context: checked for its device, and as the device is told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from openhtp.core import status as st
from openhtp.core.checks import shown
from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.core.value_kinds import GroupRegistration
from openhtp.options import CONTEXT, Arguments, ContextOrigin, OptionValues
from openhtp.options.context import CONCURRENT, CONCURRENT_ARCH, CONCURRENT_PLATFORMS, SHARING_WITH_VA
from openhtp.rpc import messages as ms
from openhtp.runtime.objects.graph_options import unsupported

if TYPE_CHECKING:
    from openhtp.hw.soc import SocSpec
    from openhtp.program.binary import ContextBinary

log = logging.getLogger(__name__)
_VA_ARCH = 73
_QUEUE_ARCH = 73


def read_options(options: Arguments, origin: ContextOrigin, soc: SocSpec, platform: str) -> OptionValues:
    """Options of a context that is made in this way on such a device."""
    chosen = CONTEXT.read(options, arch=soc.arch, platform=platform, origin=origin)
    if chosen.share_resources:
        _check_sharing(chosen.share_resources_optimization_type, soc, platform)
    if "queue_depth" in options:
        _tell_where_queues_are(soc, platform)
    return chosen


def _tell_where_queues_are(soc: SocSpec, platform: str) -> None:
    """Every device here has queues; a user who names a phone's or a PC's system is warned."""
    if platform == "qnx" and soc.arch >= _QUEUE_ARCH:
        return
    log.log(
        logging.WARNING if platform in ("android", "windows") else logging.INFO,
        "the documents have asynchronous execution on QNX, from Hexagon v%d on; here %s, %s, on %s has it, too",
        _QUEUE_ARCH,
        soc.name,
        soc.arch_name,
        platform,
    )


def _check_sharing(kind: str, soc: SocSpec, platform: str) -> None:
    """Some kinds of sharing need newer chips, and one a platform."""
    since = {SHARING_WITH_VA: _VA_ARCH, CONCURRENT: CONCURRENT_ARCH}.get(kind, 0)
    if soc.arch < since or (kind == CONCURRENT and platform not in CONCURRENT_PLATFORMS):
        where = f" on {' or '.join(CONCURRENT_PLATFORMS)}" if kind == CONCURRENT else ""
        raise UnsupportedFeature(
            f"share_resources_optimization_type {kind} needs a Hexagon v{since} or newer{where}; this is"
            f" {soc.name}, {soc.arch_name}, on {platform}",
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
    """The request that opens the context. ``number_of`` tells the number of one that is there already.

    ``binary`` is what it is made from. ``list_number`` tells the contexts of one list from those of others.
    """
    va_sharing = chosen.share_resources and chosen.share_resources_optimization_type == SHARING_WITH_VA
    # Between contexts of a list nobody can register buffers: what was found for them is kept until they are.
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
    for place, name in enumerate(retained):
        if name not in enabled:
            raise _unknown("graph_retention_order", name, "graphs that are enabled are", enabled)
        if name in retained[:place]:
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
