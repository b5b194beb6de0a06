"""The start: the C stub calls ``start`` once and gets the answers to its entries."""

from __future__ import annotations

import atexit
import functools
import importlib
import os

from openhtp.abi.numbers import SAVER_NAME
from openhtp.capi import entries
from openhtp.capi.native_calls import NativeCalls, library_at, natives
from openhtp.records.calls import DEFAULT_FOLDER
from openhtp.runtime.instruments.saving_calls import start_saving
from openhtp.runtime.objects.backend import SAVER_VARIABLE

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


def start(say: int, shut: int, power: int, delivery: int) -> list[entries.Answer]:
    """The answers by number; what is given are functions of the stub's, by address."""
    for room in (*_ROOMS, *_SYSTEM_ROOMS):
        importlib.import_module(f"openhtp.capi.{room}")
    natives.append(NativeCalls(say, shut, power, delivery))
    library = library_at(say)
    saves = library.name == SAVER_NAME
    if saves:
        start_saving(os.environ.get(SAVER_VARIABLE) or DEFAULT_FOLDER)
    held_to_one = importlib.import_module("openhtp.capi.one_library").held_to_one
    found = entries.table(
        noted=saves or bool(os.environ.get(SAVER_VARIABLE)), held=functools.partial(held_to_one, library)
    )
    _held.append(found)
    atexit.register(natives[-1].shut)
    return found
