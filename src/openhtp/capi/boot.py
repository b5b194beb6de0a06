"""The start: the C stub calls ``start`` once and gets the answers to its entries."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os

from openhtp.abi.numbers import BACKEND_ID_HTP, SAVER_NAME
from openhtp.abi.structs import struct
from openhtp.capi import entries, identity
from openhtp.capi.native_calls import NativeCalls, library_at, natives
from openhtp.runtime.backend import SAVER_VARIABLE
from openhtp.runtime.saving_calls import start_saving
from openhtp.trace.calls import DEFAULT_FOLDER

_ROOMS = (
    "backend",
    "logs",
    "device",
    "power",
    "context",
    "graph",
    "creations",
    "providing",
    "increments",
    "properties",
    "sections",
    "execute",
    "profile",
    "memories",
    "signals",
    "errors",
)
_SYSTEM_ROOMS = ("system", "system_profile")
# Held for as long as the process lives: the stub borrows them.
_held: list[object] = []
_texts = (identity.PROVIDER_NAME.encode(), identity.SYSTEM_PROVIDER_NAME.encode())


def start(core: int, system: int, say: int, shut: int, power: int) -> list[entries.Answer]:
    """Fill in the providers at these addresses and return the answers by number."""
    for room in (*_ROOMS, *_SYSTEM_ROOMS):
        importlib.import_module(f"openhtp.capi.{room}")
    natives.append(NativeCalls(say, shut, power))
    _describe(core, system)
    saves = library_at(say).name == SAVER_NAME
    if saves:
        start_saving(os.environ.get(SAVER_VARIABLE) or DEFAULT_FOLDER)
    found = entries.table(noted=saves or bool(os.environ.get(SAVER_VARIABLE)))
    _held.append(found)
    atexit.register(natives[-1].shut)
    return found


def _describe(core: int, system: int) -> None:
    provider = struct("Provider").from_address(core)
    provider.backend_id, provider.name = BACKEND_ID_HTP, _texts[0]
    for version, numbers in ((provider.api.core, identity.core_api()), (provider.api.backend, identity.htp_api())):
        version.major, version.minor, version.patch = numbers
    beside = struct("SystemProvider").from_address(system)
    beside.backend_id, beside.name = BACKEND_ID_HTP, _texts[1]
    beside.api.major, beside.api.minor, beside.api.patch = identity.system_api()
    _held.append((provider, beside, ctypes.sizeof(provider)))
