"""The functions of the C interface in the order of a provider's table, with their argument types.

Entries are only ever appended by the vendor, so a place holds for every later version; one past these tables is
never called. All functions return a 64-bit status, of which the low 16 bits are a code of their area.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, NamedTuple

from openhtp.abi.structs import PLAIN, struct


class TableEntry(NamedTuple):
    """One function of a provider: its place, which is also its number for a dispatcher, and its arguments.

    ``ptr`` is any handle or address; a structure's name stands for that structure by value. ``arguments`` is None
    where a structure goes by value whose size differs between versions, so that the function cannot be called.
    """

    place: int
    area: str
    arguments: str | None


def _table(text: str) -> dict[str, TableEntry]:
    """Lines of name, area and arguments."""
    entries: dict[str, TableEntry] = {}
    for slot, line in enumerate(text.strip().splitlines()):
        name, area, *arguments = line.split()
        entries[name] = TableEntry(slot, area, None if "?" in arguments else " ".join(arguments))
    return entries


CORE: Mapping[str, TableEntry] = _table("""
    propertyHasCapability                PROPERTY    u32
    backendCreate                        BACKEND     ptr ptr ptr
    backendSetConfig                     BACKEND     ptr ptr
    backendGetApiVersion                 BACKEND     ptr
    backendGetBuildId                    BACKEND     ptr
    backendRegisterOpPackage             BACKEND     ptr ptr ptr ptr
    backendGetSupportedOperations        BACKEND     ptr ptr ptr
    backendValidateOpConfig              OP_PACKAGE  ptr OpConfig
    backendFree                          BACKEND     ptr
    contextCreate                        CONTEXT     ptr ptr ptr ptr
    contextSetConfig                     CONTEXT     ptr ptr
    contextGetBinarySize                 CONTEXT     ptr ptr
    contextGetBinary                     CONTEXT     ptr ptr u64 ptr
    contextCreateFromBinary              CONTEXT     ptr ptr ptr ptr u64 ptr ptr
    contextFree                          CONTEXT     ptr ptr
    graphCreate                          GRAPH       ptr ptr ptr ptr
    graphCreateSubgraph                  GRAPH       ptr ptr ptr
    graphSetConfig                       GRAPH       ptr ptr
    graphAddNode                         GRAPH       ptr OpConfig
    graphFinalize                        GRAPH       ptr ptr ptr
    graphRetrieve                        GRAPH       ptr ptr ptr
    graphExecute                         GRAPH       ptr ptr u32 ptr u32 ptr ptr
    graphExecuteAsync                    GRAPH       ptr ptr u32 ptr u32 ptr ptr ptr ptr
    tensorCreateContextTensor            TENSOR      ptr ptr
    tensorCreateGraphTensor              TENSOR      ptr ptr
    logCreate                            LOG         ptr u32 ptr
    logSetLogLevel                       LOG         ptr u32
    logFree                              LOG         ptr
    profileCreate                        PROFILE     ptr u32 ptr
    profileSetConfig                     PROFILE     ptr ptr
    profileGetEvents                     PROFILE     ptr ptr ptr
    profileGetSubEvents                  PROFILE     u64 ptr ptr
    profileGetEventData                  PROFILE     u64 ptr
    profileGetExtendedEventData          PROFILE     u64 ptr
    profileFree                          PROFILE     ptr
    memRegister                          MEM         ptr ptr u32 ptr
    memDeRegister                        MEM         ptr u32
    deviceGetPlatformInfo                DEVICE      ptr ptr
    deviceFreePlatformInfo               DEVICE      ptr ptr
    deviceGetInfrastructure              DEVICE      ptr
    deviceCreate                         DEVICE      ptr ptr ptr
    deviceSetConfig                      DEVICE      ptr ptr
    deviceGetInfo                        DEVICE      ptr ptr
    deviceFree                           DEVICE      ptr
    signalCreate                         SIGNAL      ptr ptr ptr
    signalSetConfig                      SIGNAL      ptr ptr
    signalTrigger                        SIGNAL      ptr
    signalFree                           SIGNAL      ptr
    errorGetMessage                      ERROR       u64 ptr
    errorGetVerboseMessage               ERROR       u64 ptr
    errorFreeVerboseMessage              ERROR       ptr
    graphPrepareExecutionEnvironment     GRAPH       ptr ptr u32
    graphReleaseExecutionEnvironment     GRAPH       ptr ptr u32
    graphGetProperty                     GRAPH       ptr ptr
    contextValidateBinary                CONTEXT     ptr ptr ptr ptr u64
    contextCreateFromBinaryWithSignal    CONTEXT     ptr ptr ptr ptr u64 ptr ptr ptr
    contextCreateFromBinaryListAsync     CONTEXT     ptr ptr ptr ptr ptr
    tensorUpdateGraphTensors             TENSOR      ptr ptr u64
    tensorUpdateContextTensors           TENSOR      ptr ptr u64
    contextGetBinarySectionSize          CONTEXT     ptr ptr u32 ptr
    contextGetBinarySection              CONTEXT     ptr ptr u32 ptr ptr ptr ptr
    contextApplyBinarySection            CONTEXT     ptr ptr u32 ptr ptr ptr
    backendGetProperty                   BACKEND     ptr ptr
    contextGetProperty                   CONTEXT     ptr ptr
    contextGetIncrementalBinary          CONTEXT     ptr ptr ptr ptr
    contextReleaseIncrementalBinary      CONTEXT     ptr ptr u64
    contextFinalize                      CONTEXT     ptr ptr
    globalConfigSet                      COMMON      ptr
    contextCreateFromBinaryWithCallback  CONTEXT     ptr ptr ptr ptr ptr u64 ptr ptr ptr
    contextGetBinarySectionUpdate        CONTEXT     ptr ptr ptr u64 u8 ptr ptr ptr ptr
    contextFreeBinarySectionUpdate       CONTEXT     ContextBuffer ptr
""")

SYSTEM: Mapping[str, TableEntry] = _table("""
    systemContextCreate                     SYSTEM_CONTEXT  ptr
    systemContextGetBinaryInfo              SYSTEM_CONTEXT  ptr ptr u64 ptr ptr
    systemContextGetMetaData                SYSTEM_CONTEXT  ptr ptr u64 ptr
    systemContextFree                       SYSTEM_CONTEXT  ptr
    systemTensorGetMemoryFootprint          SYSTEM_TENSOR   Tensor ptr
    systemLogCreate                         SYSTEM_LOG      ptr u32 ptr
    systemLogSetLogLevel                    SYSTEM_LOG      ptr u32
    systemLogFree                           SYSTEM_LOG      ptr
    systemDlcCreateFromFile                 SYSTEM_DLC      ptr ptr ptr
    systemDlcCreateFromBinary               SYSTEM_DLC      ptr ptr u64 ptr
    systemDlcComposeGraphs                  SYSTEM_DLC      ptr ptr u32 ptr ptr ? u32 ptr ptr
    systemDlcGetOpMappings                  SYSTEM_DLC      ptr ptr ptr
    systemDlcFree                           SYSTEM_DLC      ptr
    systemProfileCreateSerializationTarget  SYSTEM_PROFILE  SerializationTarget ptr u32 ptr
    systemProfileSerializeEventData         SYSTEM_PROFILE  ptr ptr u32
    systemProfileFreeSerializationTarget    SYSTEM_PROFILE  ptr
""")

# Slots of the system's table in the vendor's library. Of those behind the functions above nothing but their places
# is known; clients ask that some of them are not NULL.
SYSTEM_SLOTS = 90

# The functions of the HTP performance infrastructure, by field of ``Infrastructure``.
POWER: Mapping[str, TableEntry] = _table("""
    create_id  HTP_PERF_INFRASTRUCTURE  u32 u32 ptr
    destroy_id HTP_PERF_INFRASTRUCTURE  u32
    set_power  HTP_PERF_INFRASTRUCTURE  u32 ptr
    set_memory HTP_PERF_INFRASTRUCTURE  u32 u32 ptr
""")

# A C va_list reaches the callback as one pointer-sized word on x86-64 and AArch64 Linux alike.
LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p)


def prototype(entry: TableEntry) -> Any:
    """The ctypes function type of an entry."""
    if entry.arguments is None:
        raise TypeError(f"entry {entry.place} of {entry.area} takes a structure whose size is not known")
    arguments = [PLAIN[word] if word in PLAIN else struct(word) for word in entry.arguments.split()]
    return ctypes.CFUNCTYPE(ctypes.c_uint64, *arguments)


def functions(table: int, entries: Mapping[str, TableEntry]) -> dict[str, Any]:
    """Read the functions out of a provider's table at an address. An entry left NULL is left out."""
    callables: dict[str, Any] = {}
    for name, entry in entries.items():
        address = ctypes.c_void_p.from_address(table + entry.place * ctypes.sizeof(ctypes.c_void_p)).value
        if address and entry.arguments is not None:
            callables[name] = prototype(entry)(address)
    return callables
