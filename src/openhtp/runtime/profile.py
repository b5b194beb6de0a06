"""Profile handles: what one call cost, as the API's tree of events."""

from __future__ import annotations

from openhtp.core import status as st
from openhtp.core.errors import WrongState
from openhtp.core.levels import ProfileLevel
from openhtp.runtime.calls.sheet import DEADLINE_MISSED, ProfileEvent, Sheet
from openhtp.runtime.lifecycle import Life, State

__all__ = ["DEADLINE_MISSED", "Profile", "ProfileEvent"]


class Profile:
    """Collects the events of the call it is given to. Using it again replaces them."""

    def __init__(self, level: ProfileLevel) -> None:
        self.level = level
        self._life = Life("profile", "")
        self._sheet = Sheet(self._life, level)

    @property
    def events(self) -> tuple[ProfileEvent, ...]:
        """The events of the last call, each with those it is made of."""
        return self._sheet.events

    def event(self, number: int) -> ProfileEvent | None:
        """The event with this API number, wherever it is in the tree."""
        pending = list(self.events)
        while pending:
            event = pending.pop()
            if event.type == number:
                return event
            pending.extend(event.events)
        return None

    def free(self) -> None:
        """Give the handle back; refused while a call fills it."""
        self._life.require("free")
        if self._sheet.holder is not None:
            raise WrongState("the profile handle is in use", st.QNN_PROFILE_ERROR_HANDLE_IN_USE)
        self._life.end(State.FREED)

    def __repr__(self) -> str:
        level, events = self.level.name.lower(), self.events
        if self._sheet.holder is not None:
            return f"<Profile {level}, being filled>"
        if not events:
            return f"<Profile {level}, empty>"
        last = events[-1]
        return f"<Profile {level}, {len(events)} events, {last.name}: {last.value} {last.unit}>"
