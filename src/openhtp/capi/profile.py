"""Profiles: the cost of a call, as events that clients ask for one by one."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Sequence
from typing import Any

from openhtp.abi import memory
from openhtp.abi.structs import struct
from openhtp.capi import handles
from openhtp.capi.backend import BackendHeld
from openhtp.capi.entries import answers
from openhtp.capi.handles import HandleEntry
from openhtp.core import status as st
from openhtp.core.dtype import DType
from openhtp.core.enumerations import ProfileLevel
from openhtp.core.errors import InvalidArgument
from openhtp.core.option_numbers import ProfileOption
from openhtp.runtime.objects.profile import Profile, ProfileEvent

_UNITS = {"us": 1, "bytes": 2, "cycles": 3, "count": 4, "object": 5}
_NO_UNIT = 6
_numbers = itertools.count(0x0C71_0000_0010, 0x10)


class ProfileHeld(HandleEntry):
    """A profile and the events that it was asked for."""

    word, invalid = "profile", st.QNN_PROFILE_ERROR_INVALID_HANDLE

    def __init__(self, backend: BackendHeld, level: ProfileLevel) -> None:
        super().__init__(backend)
        self._backend = backend
        self._options: dict[str, Any] = {}
        self.profile: Profile = backend.backend.create_profile(level)
        self._shown: tuple[ProfileEvent, ...] = ()
        self._numbers: list[int] = []

    def configure(self, options: dict[str, Any]) -> None:
        """Change how events are collected; the events so far are dropped."""
        chosen = {**self._options, **options}
        fresh = self._backend.backend.create_profile(self.profile.level, **chosen)
        self.profile.free()
        self.profile, self._options = fresh, chosen

    def events(self) -> tuple[ProfileEvent, ...]:
        """The events of the last call, which get their numbers here."""
        events = self.profile.events()
        if events is not self._shown:
            self.forget()
            self._shown = events
        return events

    def number(self, events: Sequence[ProfileEvent]) -> int:
        """The address of the events' numbers."""
        numbers = [_note(event, self) for event in events]
        self._numbers += numbers
        listing = (ctypes.c_uint64 * max(1, len(numbers)))(*numbers)
        self.keep.append(listing)
        return ctypes.addressof(listing)

    def forget(self) -> None:
        """Forget all numbers of events."""
        for number in self._numbers:
            _events.pop(number, None)
        self._numbers.clear()
        self.keep.clear()


def profile_at(handle: int) -> Profile | None:
    """The profile that a call carries; NULL stands for none."""
    return handles.find(ProfileHeld, handle).profile if handle else None


_events: dict[int, tuple[ProfileEvent, ProfileHeld]] = {}


def _note(event: ProfileEvent, entry: ProfileHeld) -> int:
    number = next(_numbers)
    _events[number] = (event, entry)
    return number


def _event(number: int) -> tuple[ProfileEvent, ProfileHeld]:
    known = _events.get(number)
    if known is None:
        raise InvalidArgument(
            f"{number:#x} is no event of this library, or of an earlier call", st.QNN_PROFILE_ERROR_INVALID_HANDLE
        )
    return known


@answers("profileCreate")
def profile_create(backend: int, level: int, out: int) -> None:
    """A profile for one call at a time."""
    owner = handles.find(BackendHeld, backend)
    handles.require_place(out, "profile")
    handles.give(out, ProfileHeld(owner, ProfileLevel.parse(level)))


@answers("profileSetConfig")
def profile_set_config(profile: int, config: int) -> None:
    """Set how many events are kept, and whether to trace."""
    entry = handles.find(ProfileHeld, profile)
    options: dict[str, Any] = {}
    for address in memory.pointers(config, "the profile's configuration"):
        setting = memory.structure(struct("Config"), address, "the profile's configuration")
        if setting.option == ProfileOption.MAX_EVENTS:
            options["max_events"] = setting.of.number64
        elif setting.option == ProfileOption.ENABLE_OPTRACE:
            options["optrace"] = bool(setting.of.flag)
        else:
            raise InvalidArgument(f"profile option {setting.option} is unknown")
    entry.configure(options)


def _show(entry: ProfileHeld, events: Sequence[ProfileEvent], out: int, count: int) -> None:
    memory.write_number(out, entry.number(events))
    memory.write_number(count, len(events), 4)


@answers("profileGetEvents")
def profile_get_events(profile: int, out: int, count: int) -> None:
    """The events of the last call."""
    entry = handles.find(ProfileHeld, profile)
    handles.require_place(out, "events")
    handles.require_place(count, "number of events", 4)
    _show(entry, entry.events(), out, count)


@answers("profileGetSubEvents")
def profile_get_sub_events(event: int, out: int, count: int) -> None:
    """The events below an event."""
    parent, entry = _event(event)
    handles.require_place(out, "events")
    handles.require_place(count, "number of events", 4)
    _show(entry, parent.events, out, count)


def _text(event: ProfileEvent, entry: ProfileHeld) -> bytes:
    text = event.name.encode("utf-8", "replace")
    entry.keep.append(text)
    return text


@answers("profileGetEventData")
def profile_get_event_data(event: int, out: int) -> None:
    """One event."""
    known, entry = _event(event)
    data = struct("EventData")(
        known.type, _UNITS.get(known.unit, _NO_UNIT), max(0, known.value), _text(known, entry)
    )
    handles.require_place(out, "event", ctypes.sizeof(data))
    memory.write(out, bytes(data))


@answers("profileGetExtendedEventData")
def profile_get_extended_event_data(event: int, out: int) -> None:
    """One event in the form that can hold more than numbers."""
    known, entry = _event(event)
    data: Any = struct("ExtendedEventData")(version=1, type=known.type, unit=_UNITS.get(known.unit, _NO_UNIT))
    data.value.data_type = int(DType.UINT_64)
    data.value.raw.align = max(0, known.value)
    data.timestamp = time.monotonic_ns() // 1000
    data.identifier = _text(known, entry)
    handles.require_place(out, "event", ctypes.sizeof(data))
    memory.write(out, bytes(data))


@answers("profileFree")
def profile_free(profile: int) -> None:
    """Free a profile; refused while a call fills it."""
    entry = handles.find(ProfileHeld, profile)
    entry.profile.free()
    entry.forget()
    handles.remove(entry)
