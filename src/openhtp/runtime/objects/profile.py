"""Profile handles: what one call cost, as the API's tree of events."""

from __future__ import annotations

import time

from openhtp.core import status as st
from openhtp.core.checks import shown, whole_number
from openhtp.core.enumerations import ProfileLevel
from openhtp.core.errors import InvalidArgument, WrongState
from openhtp.records.profile import Message, Method, ProfileEvent, RunTimes, walk
from openhtp.records.schematic import Schematic
from openhtp.runtime.calls.sheet import Executed, Sheet
from openhtp.runtime.instruments.instrument import hooked
from openhtp.runtime.objects.lifecycle import Life, State
from openhtp.runtime.objects.profile_events import DEADLINE_MISSED, execute_events

__all__ = ["DEADLINE_MISSED", "Profile", "ProfileEvent"]


@hooked(free="free")
class Profile:
    """Collects the events of the call it is given to. Using it again replaces them.

    Args:
        level: how much.
        optrace: also what every op on the chip does when; see ``docs/profiling.md``.
        max_events: events that are kept at most, of the first ones; None for all.
    """

    def __init__(self, level: ProfileLevel, *, optrace: bool = False, max_events: int | None = None) -> None:
        self.level = level
        self.optrace = optrace
        self.max_events = max_events
        self._life = Life("profile", "")
        self.sheet = Sheet(self._life, level)
        self._told: tuple[object, tuple[ProfileEvent, ...]] = (None, ())

    def events(self) -> tuple[ProfileEvent, ...]:
        """The events of the last call, each with those it is made of.

        Worked out when first asked for: a detailed profile compiles the graph again to tell about its ops.
        """
        found = self.sheet.found
        if found is not self._told[0]:
            events = (
                execute_events(found, self.level, optrace=self.optrace)
                if isinstance(found, Executed)
                else (() if found is None else found.events)
            )
            self._told = found, events[: self.max_events]
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
        found = self.sheet.found
        return found.modelled.soc if isinstance(found, Executed) and found.modelled is not None else ""

    def schematic(self) -> Schematic | None:
        """What was run, op by op on the chip (modelled); None if that is not known."""
        found = self.sheet.found
        if not isinstance(found, Executed) or found.modelled is None or not found.modelled.is_known:
            return None
        return found.modelled.schematic(found.clocks)

    def message(self) -> Message | None:
        """What a log keeps of the last call; None if there was none."""
        found = self.sheet.found
        if found is None:
            return None
        stamp = time.time_ns() // 1000
        if not isinstance(found, Executed):
            return Message(method=found.method, graph=found.graph, stamp_us=stamp, events=self.events())
        record, modelled = found.record, found.modelled
        traced = self.optrace and modelled is not None and modelled.is_known
        schematic = None if self.level is ProfileLevel.BASIC else self.schematic()
        return Message(
            method=Method.EXECUTE if found.synchronous else Method.EXECUTE_ASYNC,
            graph=found.graph,
            stamp_us=stamp,
            events=self.events(),
            timeline_cycles=0 if schematic is None else schematic.cycles,
            clock_hz=0 if schematic is None else schematic.clock_hz,
            run=RunTimes(
                received_ns=record.received_ns,
                started_ns=record.started_ns,
                finished_ns=record.finished_ns,
                step_times_ns=tuple(found.told.step_times_ns),
                pauses=tuple(found.told.pauses),
                power_up_ns=found.told.power_up_ns,
            ),
            schematic=modelled.digest(found.clocks) if traced and modelled is not None else "",
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
