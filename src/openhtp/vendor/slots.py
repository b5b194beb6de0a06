"""The calls of the C interface that we use: place in the provider's table and argument types.

Slots are only ever appended by the vendor, so an index holds for every later version. A slot past the table
that the documents describe is never called.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from openhtp.vendor.declarations import struct
from openhtp.vendor.layout import PLAIN


class Slot(NamedTuple):
    """One function of a provider."""

    place: int
    area: str
    arguments: str


# ``ptr`` is any handle or address; ``OpConfig`` goes by value, as the interface wants it.
CORE = {
    "propertyHasCapability": Slot(0, "PROPERTY", "u32"),
    "backendCreate": Slot(1, "BACKEND", "ptr ptr ptr"),
    "backendGetBuildId": Slot(4, "BACKEND", "ptr"),
    "backendGetSupportedOperations": Slot(6, "BACKEND", "ptr ptr ptr"),
    "backendValidateOpConfig": Slot(7, "OP_PACKAGE", "ptr OpConfig"),
    "backendFree": Slot(8, "BACKEND", "ptr"),
    "contextCreate": Slot(9, "CONTEXT", "ptr ptr ptr ptr"),
    "contextSetConfig": Slot(10, "CONTEXT", "ptr ptr"),
    "contextGetBinarySize": Slot(11, "CONTEXT", "ptr ptr"),
    "contextGetBinary": Slot(12, "CONTEXT", "ptr ptr u64 ptr"),
    "contextCreateFromBinary": Slot(13, "CONTEXT", "ptr ptr ptr ptr u64 ptr ptr"),
    "contextFree": Slot(14, "CONTEXT", "ptr ptr"),
    "graphCreate": Slot(15, "GRAPH", "ptr ptr ptr ptr"),
    "graphSetConfig": Slot(17, "GRAPH", "ptr ptr"),
    "graphAddNode": Slot(18, "GRAPH", "ptr OpConfig"),
    "graphFinalize": Slot(19, "GRAPH", "ptr ptr ptr"),
    "graphRetrieve": Slot(20, "GRAPH", "ptr ptr ptr"),
    "graphExecute": Slot(21, "GRAPH", "ptr ptr u32 ptr u32 ptr ptr"),
    "tensorCreateGraphTensor": Slot(24, "TENSOR", "ptr ptr"),
    "logCreate": Slot(25, "LOG", "ptr u32 ptr"),
    "logSetLogLevel": Slot(26, "LOG", "ptr u32"),
    "logFree": Slot(27, "LOG", "ptr"),
    "profileCreate": Slot(28, "PROFILE", "ptr u32 ptr"),
    "profileGetEvents": Slot(30, "PROFILE", "ptr ptr ptr"),
    "profileGetSubEvents": Slot(31, "PROFILE", "u64 ptr ptr"),
    "profileGetEventData": Slot(32, "PROFILE", "u64 ptr"),
    "profileFree": Slot(34, "PROFILE", "ptr"),
    "deviceGetPlatformInfo": Slot(37, "DEVICE", "ptr ptr"),
    "deviceFreePlatformInfo": Slot(38, "DEVICE", "ptr ptr"),
    "deviceGetInfrastructure": Slot(39, "DEVICE", "ptr"),
    "deviceCreate": Slot(40, "DEVICE", "ptr ptr ptr"),
    "deviceFree": Slot(43, "DEVICE", "ptr"),
    "globalConfigSet": Slot(67, "COMMON", "ptr"),
}

SYSTEM = {
    "systemContextCreate": Slot(0, "SYSTEM_CONTEXT", "ptr"),
    "systemContextGetMetaData": Slot(2, "SYSTEM_CONTEXT", "ptr ptr u64 ptr"),
    "systemContextFree": Slot(3, "SYSTEM_CONTEXT", "ptr"),
}

# The four functions of the HTP performance infrastructure, by field of ``Infrastructure``.
POWER = {
    "create_id": Slot(0, "HTP_PERF_INFRASTRUCTURE", "u32 u32 ptr"),
    "destroy_id": Slot(1, "HTP_PERF_INFRASTRUCTURE", "u32"),
    "set_power": Slot(2, "HTP_PERF_INFRASTRUCTURE", "u32 ptr"),
}

# A C va_list reaches the callback as one pointer-sized word on x86-64 and AArch64 Linux alike.
LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p)


def prototype(slot: Slot) -> Any:
    """The ctypes function type of a slot; every call of the interface returns a 64-bit status."""
    arguments = [PLAIN[word] if word in PLAIN else struct(word) for word in slot.arguments.split()]
    return ctypes.CFUNCTYPE(ctypes.c_uint64, *arguments)


def functions(table: int, slots: dict[str, Slot]) -> dict[str, Any]:
    """Read the functions out of a provider's table at an address. A slot left NULL is left out."""
    found: dict[str, Any] = {}
    for name, slot in slots.items():
        address = ctypes.c_void_p.from_address(table + slot.place * ctypes.sizeof(ctypes.c_void_p)).value
        if address:
            found[name] = prototype(slot)(address)
    return found
