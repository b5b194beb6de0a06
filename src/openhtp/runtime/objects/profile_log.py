"""A log of profiles: what several calls cost, in one file for ``openhtp profile-viewer``."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from openhtp.core.checks import path_of, shown
from openhtp.core.enumerations import ProfileLevel
from openhtp.core.errors import BadProfile, InvalidArgument, WrongState
from openhtp.core.files import write_file
from openhtp.core.version import VERSION
from openhtp.records.profile import Message, ProfileLogContent
from openhtp.records.schematic import Schematic
from openhtp.runtime.objects.profile import Profile


class ProfileLog:
    """Collects profiles; written when closed, as one file and, with optrace, a schematic of each graph beside it.

    ``schematic_folder`` is another folder for those, as the vendor's tools leave them in the working directory.
    Of a graph that ran at several clocks there is one schematic for each.

    Examples:
        >>> with ProfileLog("run.log") as log:  # doctest: +SKIP
        ...     graph.execute(inputs, profile=profile)
        ...     log.add(profile)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        app: str = "openhtp",
        schematic_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        given = path_of(path)
        if given is None:
            raise InvalidArgument(f"path is {shown(path)}; expected a path")
        self.path = Path(given)
        self._folder = self.path.parent if schematic_folder is None else Path(schematic_folder)
        self.schematics: dict[str, Path] = {}
        self._app = app
        self._lock = threading.Lock()
        self._created_us = time.time_ns() // 1000
        self._level = ""
        self._messages: list[Message] = []
        # By graph and digest: votes may give runs of one graph different clocks.
        self._found: dict[str, dict[str, Schematic]] = {}
        self._soc = ""
        self._clock_hz = 0
        self._closed = False

    def add(self, profile: Profile) -> None:
        """Keep what a profile holds now; a profile that no call has filled yet adds nothing."""
        message = profile.message()
        if message is None:
            return
        schematic = None if profile.level is ProfileLevel.BASIC else profile.schematic()
        with self._lock:
            if self._closed:
                raise WrongState(f"the log {str(self.path)!r} is closed")
            self._messages.append(message)
            self._level = "optrace" if profile.optrace else profile.level.name.lower()
            self._soc = self._soc or profile.soc
            if schematic is not None:
                self._clock_hz = schematic.clock_hz
                if profile.optrace:
                    self._found.setdefault(message.graph, {})[message.schematic] = schematic

    def note(self, message: Message) -> None:
        """Keep what a program tells of itself: how long it took, how many inferences it ran."""
        with self._lock:
            if self._closed:
                raise WrongState(f"the log {str(self.path)!r} is closed")
            self._messages.append(message)

    def close(self) -> None:
        """Write the files; again does nothing."""
        from openhtp.report.profile_log import log_bytes, schematic_bytes

        with self._lock:
            if self._closed:
                return
            self._closed = True
            log = ProfileLogContent(
                app=self._app,
                version=VERSION,
                created_us=self._created_us,
                soc=self._soc,
                clock_hz=self._clock_hz,
                level=self._level,
                messages=tuple(self._messages),
            )
            _write(self.path, log_bytes(log))
            for graph, found in self._found.items():
                for number, schematic in enumerate(found.values()):
                    name = graph if not number else f"{graph}_{schematic.clock_hz // 10**6}MHz"
                    target = self._folder / f"{_file_name(name)}_schematic.bin"
                    _write(target, schematic_bytes(schematic))
                    self.schematics[name] = target

    def __enter__(self) -> ProfileLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        """Write the files, unless something went wrong within."""
        if kind is None:
            self.close()


def _file_name(graph: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in graph)[:120] or "graph"


def _write(path: Path, data: bytes) -> None:
    """All of it or nothing: who reads it never sees a part."""
    try:
        write_file(path, data)
    except OSError as problem:
        raise BadProfile(str(problem)) from problem
