"""Profile handles: the cost of one call, as the API's tree of events; and logs of several calls."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from openhtp.core import status as st
from openhtp.core.checks import path_of, shown, whole_number
from openhtp.core.enumerations import ProfileLevel
from openhtp.core.errors import BadProfile, InvalidArgument, WrongState
from openhtp.core.files import write_file
from openhtp.core.version import VERSION
from openhtp.records.profile import Message, Method, ProfileEvent, ProfileLogContent, RunTimes, walk
from openhtp.records.schematic import OpTrace, Schematic
from openhtp.runtime.calls.sheet import ExecutedCall, Sheet
from openhtp.runtime.instruments.instrument import hooked
from openhtp.runtime.objects.lifecycle import Life, State
from openhtp.runtime.objects.profile_events import DEADLINE_MISSED, execute_events

__all__ = ["DEADLINE_MISSED", "Profile", "ProfileEvent", "ProfileLog"]


@hooked(free="free")
class Profile:
    """Collects the events of the call it is given to. Using it again replaces them.

    Args:
        level: how much.
        optrace: also when every op runs on the chip; see ``docs/profiling.md``.
        max_events: how many events are kept, from the first on; None for all.
    """

    def __init__(self, level: ProfileLevel, *, optrace: bool = False, max_events: int | None = None) -> None:
        self.level = level
        self.optrace = optrace
        self.max_events = max_events
        self._life = Life("profile", "")
        self.sheet = Sheet(self._life, level)
        self._told: tuple[object, tuple[ProfileEvent, ...]] = (None, ())

    def events(self) -> tuple[ProfileEvent, ...]:
        """The events of the last call, each with the events below it.

        They are worked out at the first call: a detailed profile compiles the graph again to describe its ops.
        """
        filled = self.sheet.found
        if filled is not self._told[0]:
            events = (
                execute_events(filled, self.level, optrace=self.optrace)
                if isinstance(filled, ExecutedCall)
                else (() if filled is None else filled.events)
            )
            self._told = filled, events[: self.max_events]
        return self._told[1]

    def event(self, number: int) -> ProfileEvent | None:
        """The first event with this API number, wherever it is in the tree."""
        wanted = whole_number(number)
        if wanted is None:
            words = f"number is {shown(number)}; expected that of an event, as 3001"
            raise InvalidArgument(words, st.QNN_PROFILE_ERROR_INVALID_ARGUMENT)
        return next((event for event in walk(self.events()) if event.type == wanted), None)

    @property
    def soc(self) -> str:
        """The chip that the last call ran on; empty if it was no execution."""
        filled = self.sheet.found
        return filled.modelled.soc if isinstance(filled, ExecutedCall) and filled.modelled is not None else ""

    def schematic(self) -> Schematic | None:
        """What was run, op by op on the chip (modelled); None if that is not known."""
        filled = self.sheet.found
        if not isinstance(filled, ExecutedCall) or filled.modelled is None or not filled.modelled.is_known:
            return None
        return filled.modelled.schematic(filled.clocks)

    def message(self) -> Message | None:
        """The record of the last call for a log; None if there was none."""
        filled = self.sheet.found
        if filled is None:
            return None
        stamp = time.time_ns() // 1000
        if not isinstance(filled, ExecutedCall):
            return Message(method=filled.method, graph=filled.graph, stamp_us=stamp, events=self.events())
        record, modelled = filled.record, filled.modelled
        traced = self.optrace and modelled is not None and modelled.is_known
        schematic = None if self.level is ProfileLevel.BASIC else self.schematic()
        return Message(
            method=Method.EXECUTE if filled.synchronous else Method.EXECUTE_ASYNC,
            graph=filled.graph,
            stamp_us=stamp,
            events=self.events(),
            timeline_cycles=0 if schematic is None else schematic.cycles,
            clock_hz=0 if schematic is None else schematic.clock_hz,
            run=RunTimes(
                received_ns=record.received_ns,
                started_ns=record.started_ns,
                finished_ns=record.finished_ns,
                step_times_ns=tuple(filled.told.step_times_ns),
                pauses=tuple(filled.told.pauses),
                power_up_ns=filled.told.power_up_ns,
            ),
            schematic=modelled.digest(filled.clocks) if traced and modelled is not None else "",
            preparation=modelled.preparation if traced and modelled is not None else "",
            steps=modelled.steps if traced and modelled is not None else (),
        )

    def free(self) -> None:
        """Give the handle back; refused while a call fills it."""
        self._life.require("free")
        if self.sheet.holder is not None:
            raise WrongState("the profile handle is in use", st.QNN_PROFILE_ERROR_HANDLE_IN_USE)
        self._life.end(State.FREED)

    def __repr__(self) -> str:
        level = "optrace" if self.optrace else self.level.name.lower()
        if self.sheet.holder is not None:
            return f"<Profile {level}, being filled>"
        if self.sheet.found is None:
            return f"<Profile {level}, empty>"
        events = self.events()
        last = events[-1]
        return f"<Profile {level}, {len(events)} events, {last.name}: {last.value} {last.unit}>"


class ProfileLog:
    """Collects profiles in one file for ``openhtp profile-viewer``; it is written when the log is closed.

    With optrace, a schematic of each graph is written beside it.

    ``schematic_folder`` is another folder for the schematics, as the vendor's tools leave them in the working
    directory. A schematic from the preparation of the graph stays as it is: the log says when its ops ran.

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
        checked = path_of(path)
        if checked is None:
            raise InvalidArgument(f"path is {shown(path)}; expected a path")
        self.path = Path(checked)
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
        """Keep the present events of a profile; a profile that no call has filled yet adds nothing."""
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
        """Keep facts about the program itself: how long it took, how many inferences it ran."""
        with self._lock:
            if self._closed:
                raise WrongState(f"the log {str(self.path)!r} is closed")
            self._messages.append(message)

    def close(self) -> None:
        """Write the files; a second call does nothing."""
        from openhtp.report.profile_log import log_bytes

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
                traces=tuple(
                    OpTrace.of(digest, schematic)
                    for traced in self._found.values()
                    for digest, schematic in traced.items()
                ),
            )
            _write(self.path, log_bytes(log))
            for graph, traced in self._found.items():
                self._write_schematic(graph, next(iter(traced.values())))

    def _write_schematic(self, graph: str, schematic: Schematic) -> None:
        """Write the schematic of a graph at the clocks of its first run, unless the same preparation wrote one."""
        from openhtp.report.profile_log import preparation_digest, read_schematic, schematic_bytes

        target = self.schematics[graph] = self._folder / f"{_file_name(graph)}_schematic.bin"
        try:
            is_there = preparation_digest(read_schematic(target)) == preparation_digest(schematic)
        except BadProfile:  # none, or something else
            is_there = False
        if not is_there:
            _write(target, schematic_bytes(schematic))

    def __enter__(self) -> ProfileLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        """Write the files, unless the body raised."""
        if kind is None:
            self.close()


def _file_name(graph: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in graph)[:120] or "graph"


def _write(path: Path, data: bytes) -> None:
    """Write a file in one step: a reader never sees a part of it."""
    try:
        write_file(path, data)
    except OSError as problem:
        raise BadProfile(str(problem)) from problem
