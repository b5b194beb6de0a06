"""Profile handles: what one call cost, as the API's tree of events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from openhtp.core import status as st
from openhtp.core.errors import WrongState
from openhtp.core.levels import ProfileLevel
from openhtp.core.status import QNN_SUCCESS
from openhtp.rpc.frames import Record
from openhtp.runtime.lifecycle import Life, State

# Ours: the documents know no deadlines. 1 if the device was not done in time, else 0.
DEADLINE_MISSED = 9001


@dataclass(frozen=True, slots=True)
class ProfileEvent:
    """One measured value. ``type`` is the API's event number, ``unit`` one of us, count, cycles."""

    type: int
    name: str
    value: int
    unit: str
    events: tuple[ProfileEvent, ...] = ()


class Profile:
    """Collects the events of the call it is given to. Using it again replaces them."""

    def __init__(self, level: ProfileLevel) -> None:
        self.level = level
        self.events: tuple[ProfileEvent, ...] = ()
        self._life = Life("profile", "")
        # The call that fills it.
        self._in_use: object = None
        self._step_times_ns: list[int] = []

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
        if self._in_use is not None:
            raise WrongState("the profile handle is in use", st.QNN_PROFILE_ERROR_HANDLE_IN_USE)
        self._life.become(State.FREED)

    # What the call that fills it does

    def _begin(self, holder: object) -> None:
        self._life.require("use")
        if self._in_use is not None:
            raise WrongState(
                "the profile handle is already in use by another call; create one per queued call",
                st.QNN_GRAPH_ERROR_PROFILE_IN_USE,
            )
        self.events = ()
        self._step_times_ns = []
        self._in_use = holder

    def _abandon(self, holder: object) -> None:
        """Let go of the handle if it is this call's; twice does nothing."""
        if self._in_use is holder:
            self._in_use = None

    def _fill(
        self, record: Record, called_ns: int, sent_ns: int, returned_ns: int, deadline_at: int, hvx_threads: int
    ) -> None:
        self.events = execute_events(
            record, called_ns, sent_ns, returned_ns, deadline_at, hvx_threads, self._step_times_ns, self.level
        )

    @contextlib.contextmanager
    def _filling(self) -> Iterator[Callable[[ProfileEvent], None]]:
        """For calls that are not executions: taken for as long as they last, filled with one event."""
        holder = object()
        self._begin(holder)

        def fill(event: ProfileEvent) -> None:
            self.events = (event,)

        try:
            yield fill
        finally:
            self._abandon(holder)

    def __repr__(self) -> str:
        if self._in_use is not None:
            return f"<Profile {self.level.name.lower()}, being filled>"
        if not self.events:
            return f"<Profile {self.level.name.lower()}, empty>"
        last = self.events[-1]
        count = len(self.events)
        return f"<Profile {self.level.name.lower()}, {count} events, {last.name}: {last.value} {last.unit}>"


def execute_events(
    record: Record,
    called_ns: int,
    sent_ns: int,
    returned_ns: int,
    deadline_at: int,
    hvx_threads: int,
    step_times_ns: list[int],
    level: ProfileLevel,
) -> tuple[ProfileEvent, ...]:
    """The documented nesting: QNN > RPC > accelerator > accelerator without waiting. All times are measured."""
    accelerated = record.finished_ns - record.started_ns
    waited = record.paused_ns
    events = [
        ProfileEvent(8001, "Number of HVX threads used", hvx_threads, "count"),
        _us(405, "Queue wait", record.started_ns - record.received_ns),
        _us(3001, "RPC (execute) time", returned_ns - sent_ns),
        _us(3002, "QNN accelerator (execute) time", record.finished_ns - record.received_ns),
        _us(3004, "Accelerator (execute) time", accelerated),
        _us(3012, "Accelerator (execute excluding wait) time", accelerated - waited),
        ProfileEvent(3009, "Num times yield occured", record.yields, "count"),
    ]
    if record.yields:
        events += [
            _us(3006, "Time for initial VTCM release", record.release_ns),
            _us(3007, "Time waiting for resources after yield", waited),
            _us(3008, "Time to restore after yield", record.restore_ns),
        ]
    if deadline_at:
        missed = record.status != QNN_SUCCESS.code or record.finished_ns > deadline_at
        events.append(ProfileEvent(DEADLINE_MISSED, "Deadline missed", int(missed), "count"))
    if level is ProfileLevel.DETAILED:
        steps = tuple(_us(404, f"step {index}", time) for index, time in enumerate(step_times_ns))
        events.append(ProfileEvent(407, "Steps on the device", sum(step_times_ns) // 1000, "us", events=steps))
    events.append(_us(400, "QNN (execute) time", returned_ns - called_ns))
    return tuple(events)


def _us(number: int, name: str, nanoseconds: int) -> ProfileEvent:
    return ProfileEvent(number, name, max(0, nanoseconds) // 1000, "us")
