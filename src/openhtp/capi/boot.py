"""The start: the C stub calls ``start`` once and gets the answers to its entries.

There is one set of libraries in a process, as documented: another copy is refused while the first is in use.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openhtp.abi.numbers import SAVER_NAME, SYSTEM_NAME
from openhtp.capi import (  # each has answers of its own
    context as context,
    creations as creations,
    entries,
    execute as execute,
    graph as graph,
    handles,
    logs as logs,
    memories as memories,
    power as power,
    profile as profile,
    signals as signals,
    system as system,
)
from openhtp.capi.backend import BackendHeld
from openhtp.capi.device import DeviceHeld
from openhtp.capi.native_calls import NativeCalls, library_at, natives
from openhtp.core import status as st
from openhtp.core.errors import UnsupportedFeature
from openhtp.device import seat
from openhtp.records.calls import DEFAULT_FOLDER
from openhtp.runtime.instruments.saving_calls import start_saving
from openhtp.runtime.objects.backend import SAVER_VARIABLE

# Libraries of one set, which lie in one folder.
_NAMES = ("libQnnHtp.so", "libQnnSystem.so", SAVER_NAME)
_BEGINS = frozenset({"backendCreate"})
_REFUSED = frozenset(
    {"backendRegisterOpPackage", "backendValidateOpConfig", "contextCreate", "deviceCreate", "graphCreate"}
)
_in_use: list[Path] = []
# Kept until the process ends: the stub borrows them.
_borrowed: list[object] = []


def start(
    say: int, shut: int, power: int, delivery: int, owns_python: int = 0, turns: int = 0
) -> list[entries.Answer]:
    """The answers by number; the arguments are addresses of functions of the stub, and whether it began Python.

    ``turns`` is where callers and the thread that computes take turns with the interpreter's lock.
    """
    natives.append(NativeCalls(say, shut, power, delivery, owns_python=bool(owns_python)))
    library = library_at(say)
    if turns and library.name != SYSTEM_NAME:
        seat.turns.append(turns)
    saves = library.name == SAVER_NAME
    if saves:
        start_saving(os.environ.get(SAVER_VARIABLE) or DEFAULT_FOLDER)
    table = entries.table(
        noted=saves or bool(os.environ.get(SAVER_VARIABLE)),
        condition=functools.partial(refuse_other_copies, library),
    )
    _borrowed.append(table)
    atexit.register(natives[-1].shut)
    return table


def refuse_other_copies(library: Path, name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    """The answer of an entry of this copy, refused while another copy is in use."""
    if name not in _BEGINS | _REFUSED:
        return answer
    mine = _set_of(library)

    def call(*arguments: int) -> Any:
        if _in_use != [mine] and not handles.of_kind(BackendHeld) and not handles.of_kind(DeviceHeld):
            _in_use[:] = [mine]
        if name in _REFUSED and _in_use != [mine]:
            raise UnsupportedFeature(
                f"{str(_in_use[0])!r} is in use in this process, and {str(mine)!r} is another copy: there can be"
                " one set of libraries in a process",
                st.QNN_COMMON_ERROR_LOADING_BINARIES,
            )
        return answer(*arguments)

    return call


def _set_of(library: Path) -> Path:
    """The folder of a set of libraries; a renamed library is a set of its own."""
    path = library.resolve()
    return path.parent if path.name in _NAMES else path
