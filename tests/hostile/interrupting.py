"""Exceptions out of nowhere, at a place that can be named: what Ctrl-C raises, without a signal and a clock.

CPython runs signal handlers at the start of a function, after a call into C and at the end of a loop's turn, and
nowhere else: not between taking a lock in a ``with`` and entering its body, not between a function's return and
the assignment of its value. A profile function is called at the first two and may raise there, so that every such
place of a call has a number. Places are counted in our code and in the standard library that it calls, whose
``Event`` or ``Future`` is Python as well.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import openhtp as htp

_OURS = str(Path(htp.__file__).parent)
_STANDARD = sysconfig.get_path("stdlib")
# Held against Python, not against us: whoever is interrupted while a module is imported, or while the handler of a
# log is locked, leaves that so. (Modules are imported once, and the handlers are the program's own.) Nor can an
# event loop go on that was interrupted in the middle.
_NOT_COUNTED = ("/importlib/", "/logging/", "/asyncio/", "/site-packages/")


class Interrupt(KeyboardInterrupt):
    """Raised where nobody expects it."""


def is_place(frame: FrameType, kind: str) -> bool:
    """Whether an interrupt could come here, and is tried."""
    if kind not in ("call", "c_return"):
        return False
    while not frame.f_code.co_filename.startswith(_OURS):
        name = frame.f_code.co_filename
        if not name.startswith(_STANDARD) or any(part in name for part in _NOT_COUNTED) or frame.f_back is None:
            return False  # not called by us
        frame = frame.f_back
    return True


def places_of(action: Callable[[], object]) -> int:
    """How many places an action has."""
    count = 0

    def look(frame: FrameType, kind: str, argument: object) -> None:
        nonlocal count
        count += is_place(frame, kind)

    sys.setprofile(look)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


class Interrupting:
    """Runs an action and raises at its n-th place, counted from 1.

    Afterwards ``happened`` says whether it has so many places, ``where`` which one it was, and ``error`` is what
    came out: kept, with all that the frames of its traceback hold, as an interactive shell keeps the last one.
    """

    def __init__(self, place: int, action: Callable[[], object]) -> None:
        self.happened = False
        self.where = ""
        self.error: BaseException | None = None
        self.result: object = None
        left = place

        def look(frame: FrameType, kind: str, argument: object) -> None:
            nonlocal left
            if not is_place(frame, kind):
                return
            left -= 1
            if left == 0:
                sys.setprofile(None)
                self.happened = True
                self.where = (
                    f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name} {kind}"
                )
                raise Interrupt

        sys.setprofile(look)
        try:
            self.result = action()
        except BaseException as error:
            self.error = error
        finally:
            sys.setprofile(None)


def hear_of_unclosed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list of the files and sockets that Python finds unclosed from now on; a test expects it to stay empty.

    Python reports them to the hook that also hears of interrupts in the middle of dropping an object. Those are
    swallowed by Python, and left out here.
    """
    unclosed: list[str] = []

    def hear(dropped: sys.UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, ResourceWarning):
            unclosed.append(str(dropped.exc_value))

    monkeypatch.setattr(sys, "unraisablehook", hear)
    return unclosed
