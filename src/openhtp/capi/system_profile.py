"""libQnnSystem: events written to a file, a line of JSON for each call that was profiled."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

from openhtp.abi import memory
from openhtp.abi.structs import struct
from openhtp.capi import handles
from openhtp.capi.entries import answers
from openhtp.capi.handles import HandleEntry
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument

_FILE = 1
_EXTENDED = 1
_MOST_EVENTS = 1 << 20
_DEEPEST = 16


class TargetHeld(HandleEntry):
    """A file that events go to."""

    word, invalid = "serialization target", st.QNN_SYSTEM_CONTEXT_ERROR_INVALID_HANDLE

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path


@answers("systemProfileCreateSerializationTarget")
def system_profile_create_serialization_target(target: int, configs: int, count: int, out: int) -> None:
    """Name the file; it is made with the first events."""
    handles.require_place(out, "serialization target")
    kind, name_at, folder_at = memory.array(ctypes.c_uint64, 3, target, "the target")
    if kind & 0xFFFFFFFF != _FILE:
        raise InvalidArgument(f"a serialization target of kind {kind & 0xFFFFFFFF}; expected a file (1)")
    name, folder = memory.text(name_at, "the file's name"), memory.text(folder_at, "the file's folder")
    if not name:
        raise InvalidArgument("the serialization target has no file name")
    handles.give(out, TargetHeld(Path(folder) / name if folder else Path(name)))


@answers("systemProfileSerializeEventData")
def system_profile_serialize_event_data(target: int, data: int, count: int) -> None:
    """Write the events of some calls."""
    held = handles.find(TargetHeld, target)
    if count > _MOST_EVENTS:
        raise InvalidArgument(f"{count} calls; expected at most {_MOST_EVENTS}")
    lines: list[str] = []
    for place in memory.array(ctypes.c_void_p, count, data, "the profiled calls") if count else ():
        call = memory.structure(struct("ProfileData"), place or 0, "a profiled call")
        lines.append(
            json.dumps(
                {
                    "graph": memory.text(call.graph, "the graph's name"),
                    "method": call.method,
                    "start_us": call.start_us,
                    "stop_us": call.stop_us,
                    "events": _events(call.events, call.num_events, 0),
                }
            )
        )
    try:
        with held.path.open("a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
    except OSError as error:
        raise InvalidArgument(f"{str(held.path)!r} cannot be written: {error.strerror}") from error


def _events(address: int, count: int, depth: int) -> list[dict[str, Any]]:
    if count > _MOST_EVENTS or depth > _DEEPEST:
        raise InvalidArgument(f"{count} events, {depth} levels deep; expected fewer")
    if not count:
        return []
    found = []
    for event in memory.array(struct("ProfileEvent"), count, address, "events"):
        body = event.of.extended if event.kind == _EXTENDED else event.of.plain
        value = body.value.raw.align if event.kind == _EXTENDED else body.value
        found.append(
            {
                "type": body.type,
                "unit": body.unit,
                "value": value,
                "events": _events(event.sub_events, event.num_sub_events, depth + 1),
            }
        )
    return found


@answers("systemProfileFreeSerializationTarget")
def system_profile_free_serialization_target(target: int) -> None:
    """Let go of the file."""
    handles.remove(handles.find(TargetHeld, target))
