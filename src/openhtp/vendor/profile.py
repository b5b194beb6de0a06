"""Profiles: what the library measured in one call, as a tree of events."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openhtp.core import status as st
from openhtp.vendor.declarations import ProfileLevel, struct
from openhtp.vendor.handles import Owner

if TYPE_CHECKING:
    from openhtp.vendor.backend import Backend

_UNITS = {1: "us", 2: "bytes", 3: "cycles", 4: "count", 5: "object", 6: "none"}

# Documented names, without their QNN_PROFILE_EVENTTYPE_ and QNN_HTP_PROFILE_EVENTTYPE_ prefixes.
EVENT_NAMES = {
    100: "INIT",
    300: "FINALIZE",
    400: "EXECUTE",
    404: "NODE",
    405: "EXECUTE_QUEUE_WAIT",
    406: "EXECUTE_PREPROCESS",
    407: "EXECUTE_DEVICE",
    408: "EXECUTE_POSTPROCESS",
    500: "DEINIT",
    600: "TRACE",
    1002: "CONTEXT_LOAD_BIN_HOST_RPC_TIME_MICROSEC",
    1003: "CONTEXT_LOAD_BIN_HTP_RPC_TIME_MICROSEC",
    1004: "CONTEXT_LOAD_BIN_ACCEL_TIME_MICROSEC",
    2001: "GRAPH_FINALIZE_HOST_RPC_TIME_MICROSEC",
    2002: "GRAPH_FINALIZE_HTP_RPC_TIME_MICROSEC",
    2003: "GRAPH_FINALIZE_ACCEL_TIME_MICROSEC",
    3001: "GRAPH_EXECUTE_HOST_RPC_TIME_MICROSEC",
    3002: "GRAPH_EXECUTE_HTP_RPC_TIME_MICROSEC",
    3003: "GRAPH_EXECUTE_ACCEL_TIME_CYCLE",
    3004: "GRAPH_EXECUTE_ACCEL_TIME_MICROSEC",
    3005: "GRAPH_EXECUTE_MISC_ACCEL_TIME_MICROSEC",
    3006: "GRAPH_EXECUTE_YIELD_INSTANCE_RELEASE_TIME",
    3007: "GRAPH_EXECUTE_YIELD_INSTANCE_WAIT_TIME",
    3008: "GRAPH_EXECUTE_YIELD_INSTANCE_RESTORE_TIME",
    3009: "GRAPH_EXECUTE_YIELD_COUNT",
    3010: "GRAPH_EXECUTE_VTCM_ACQUIRE_TIME",
    3011: "GRAPH_EXECUTE_RESOURCE_POWER_UP_TIME",
    3012: "GRAPH_EXECUTE_ACCEL_EXCL_WAIT_TIME_MICROSEC",
    4001: "GRAPH_DEINIT_HOST_RPC_TIME_MICROSEC",
    4002: "GRAPH_DEINIT_HTP_RPC_TIME_MICROSEC",
    4003: "GRAPH_DEINIT_ACCEL_TIME_MICROSEC",
    5001: "NODE_WAIT",
    5002: "NODE_OVERLAP",
    5003: "NODE_WAIT_OVERLAP",
    5004: "NODE_RESOURCEMASK",
    5005: "NODE_CRITICAL_BG_OP_ID",
    5006: "NODE_WAIT_BG_OP_ID",
    6001: "GRAPH_EXECUTE_CRITICAL_ACCEL_TIME_CYCLE",
    8001: "GRAPH_NUMBER_OF_HVX_THREADS",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileEvent:
    """One measurement. ``identifier`` is the library's own wording, e.g. ``add0:OpId_18 (cycles)``."""

    type: int
    name: str
    unit: str
    value: int
    identifier: str
    children: tuple[ProfileEvent, ...] = ()

    def walk(self) -> Iterator[ProfileEvent]:
        """This event and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


class Profile(Owner):
    """Collects the events of the last call that it was given to; the next call replaces them."""

    freed_status = st.QNN_PROFILE_ERROR_INVALID_HANDLE

    def __init__(self, backend: Backend, level: ProfileLevel) -> None:
        self._library = backend.library
        handle = ctypes.c_void_p()
        self._library.call("profileCreate", backend.handle, int(level), ctypes.addressof(handle))
        super().__init__(handle.value or 0, "profile", backend)

    def events(self) -> tuple[ProfileEvent, ...]:
        """The tree of events."""
        return tuple(self._read(event) for event in self._ids("profileGetEvents", self.handle))

    def _ids(self, call: str, of: int) -> list[int]:
        ids, count = ctypes.c_void_p(), ctypes.c_uint32()
        self._library.call(call, of, ctypes.addressof(ids), ctypes.addressof(count), where="profile")
        if not ids.value or not count.value:
            return []
        return list((ctypes.c_uint64 * count.value).from_address(ids.value))

    def _read(self, event: int) -> ProfileEvent:
        data = struct("EventData")()
        self._library.call("profileGetEventData", event, ctypes.addressof(data), where="profile event")
        return ProfileEvent(
            type=data.type,
            name=EVENT_NAMES.get(data.type, f"EVENT_{data.type}"),
            unit=_UNITS.get(data.unit, f"unit {data.unit}"),
            value=data.value,
            identifier=(data.identifier or b"").decode("utf-8", "replace"),
            children=tuple(self._read(child) for child in self._ids("profileGetSubEvents", event)),
        )

    def _release(self, handle: int) -> None:
        self._library.call("profileFree", handle)
