"""Profiles: the library's measurements of one call, as a tree of events."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openhtp.abi.structs import struct
from openhtp.core import status as st
from openhtp.core.enumerations import ProfileLevel
from openhtp.records.profile import EVENT_NAMES, EVENT_UNITS
from openhtp.vendor.handles import Owner

if TYPE_CHECKING:
    from openhtp.vendor.backend import LibraryBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryEvent:
    """One measurement. ``identifier`` is the library's own wording, e.g. ``add0:OpId_18 (cycles)``."""

    type: int
    name: str
    unit: str
    value: int
    identifier: str
    children: tuple[LibraryEvent, ...] = ()

    def walk(self) -> Iterator[LibraryEvent]:
        """This event and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


class LibraryProfile(Owner):
    """Collects the events of the last call that it was given to; the next call replaces them."""

    freed_status = st.QNN_PROFILE_ERROR_INVALID_HANDLE

    def __init__(self, backend: LibraryBackend, level: ProfileLevel) -> None:
        self._library = backend.library
        super().__init__(self._library.make("profileCreate", backend.handle, int(level)), "profile", backend)

    def events(self) -> tuple[LibraryEvent, ...]:
        """The tree of events."""
        return tuple(self._read(event) for event in self._ids("profileGetEvents", self.handle))

    def _ids(self, call: str, of: int) -> list[int]:
        ids, count = ctypes.c_void_p(), ctypes.c_uint32()
        self._library.call(call, of, ctypes.addressof(ids), ctypes.addressof(count), where="profile")
        if not ids.value or not count.value:
            return []
        return list((ctypes.c_uint64 * count.value).from_address(ids.value))

    def _read(self, event: int) -> LibraryEvent:
        data = struct("EventData")()
        self._library.call("profileGetEventData", event, ctypes.addressof(data), where="profile event")
        return LibraryEvent(
            type=data.type,
            name=EVENT_NAMES.get(data.type, f"EVENT_{data.type}"),
            unit=EVENT_UNITS.get(data.unit, f"unit {data.unit}"),
            value=data.value,
            identifier=(data.identifier or b"").decode("utf-8", "replace"),
            children=tuple(self._read(child) for child in self._ids("profileGetSubEvents", event)),
        )

    def _release(self, handle: int) -> None:
        self._library.call("profileFree", handle)
