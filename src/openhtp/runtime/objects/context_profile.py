"""What making and freeing a context cost, and what the device held before the first and after the last of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from openhtp.records.profile import Method
from openhtp.runtime.calls.sheet import Noted
from openhtp.runtime.links.served import serving
from openhtp.runtime.objects.profile_events import free_events, load_events

if TYPE_CHECKING:
    from openhtp.runtime.objects.context import Context
    from openhtp.runtime.objects.device import Device


def restored(device: Device, make: Callable[[], Context], *, tells_heap: bool) -> tuple[Context, Noted]:
    """Make a context from a binary. The device's memory is told by the first context only, as documented."""
    link = device._link
    begin = link.now()
    heap = _heap(device.info()) if tells_heap and not device._live_contexts() else None
    asked = link.now()
    with serving() as served:
        context = make()
    return context, Noted(Method.CREATE_FROM_BINARY, "", load_events(begin, asked, link.now(), served, heap))


def freed(context: Context) -> Noted:
    """Free a context. The device's memory is told by the last one only, as documented."""
    device, link, tells_heap = context.device, context._link, context._chosen.dsp_memory_profiling_enabled
    begin = link.now()
    with serving() as served:
        context._free()
    end = link.now()
    heap = _heap(device.info()) if tells_heap and not device._live_contexts() else None
    return Noted(Method.DEINIT, "", free_events(begin, begin, end, served, heap))


def _heap(info: dict[str, Any]) -> int:
    """What a device holds for all its clients, by its own account."""
    return sum(session["bytes"] for session in info["sessions"])
