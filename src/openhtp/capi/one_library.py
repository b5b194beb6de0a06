"""One set of libraries in a process, as documented: another copy is refused while the first is in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from openhtp.abi.numbers import SAVER_NAME
from openhtp.capi import handles
from openhtp.capi.backend import BackendHeld
from openhtp.capi.device import DeviceHeld
from openhtp.core import status as st
from openhtp.core.errors import UnsupportedFeature

# Libraries of one set, which lie in one folder.
_NAMES = ("libQnnHtp.so", "libQnnSystem.so", SAVER_NAME)
_BEGINS = frozenset({"backendCreate"})
_REFUSED = frozenset(
    {"backendRegisterOpPackage", "backendValidateOpConfig", "contextCreate", "deviceCreate", "graphCreate"}
)

_in_use: list[Path] = []


def held_to_one(library: Path, name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    """The same answer for an entry of this copy, unless another one is in use by then."""
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
    """The folder of a set, or a library of another name by itself: renamed ones are copies, too."""
    place = library.resolve()
    return place.parent if place.name in _NAMES else place
