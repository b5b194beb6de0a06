"""The saver: writes down every call of the API while it is on, for ``openhtp replay``.

It stands between callers and the objects of the runtime, so Python programs, sessions and clients of the C table
are recorded alike. What was made before it was on is left out, except backends and devices.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from openhtp.core.checks import path_of, shown
from openhtp.core.errors import InvalidArgument
from openhtp.records import calls as cs
from openhtp.runtime.instruments.saver import Saver
from openhtp.runtime.instruments.saver_hooks import seams_of
from openhtp.runtime.instruments.seams import Seam, close_seams, open_seams


class _State:
    """The one recording of a process, and how many asked for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.saver: Saver | None = None
        self.seams: list[Seam] = []
        self.users = 0
        self.for_good = False


_state = _State()


def start_saving(folder: str | os.PathLike[str]) -> Path:
    """Record all calls of this process from now on; returns the folder. One that is on already goes on."""
    wanted = path_of(folder)
    if wanted is None:
        raise InvalidArgument(f"folder is {shown(folder)}; expected the path of a folder")
    with _state.lock:
        if _state.saver is None:
            _state.saver = Saver(wanted)
            _state.seams = seams_of(_state.saver)
            open_seams(_state.seams)
        _state.users += 1
        return _state.saver.folder


def stop_saving() -> None:
    """Whoever started a recording has no more use for it; it ends with the last of them."""
    with _state.lock:
        _state.users -= 1
        if _state.users == 0 and _state.saver is not None:
            close_seams(_state.seams)
            _state.saver.close()
            _state.saver = None


def save_for_good(folder: str) -> None:
    """Record until the process ends: what the environment asks for. Again does nothing."""
    if not _state.for_good:
        start_saving(folder)
        _state.for_good = True


@contextlib.contextmanager
def saved(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Record all calls of this process while the block runs."""
    place = start_saving(folder)
    try:
        yield place
    finally:
        stop_saving()


def noting(name: str, answer: Callable[..., int]) -> Callable[..., int]:
    """An entry of the C table that is noted when it was answered."""

    def noted(*arguments: int) -> int:
        status = answer(*arguments)
        saver = _state.saver
        if saver is not None:
            saver.write(cs.EntryCall(name=name, status=status))
        return status

    return noted
