"""What one call cost, as the API's tree of events: what a profile handle is for the call that fills it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from openhtp.core import status as st
from openhtp.core.errors import WrongState
from openhtp.core.levels import ProfileLevel
from openhtp.core.status import QNN_SUCCESS
from openhtp.rpc.frames import Record
from openhtp.runtime.lifecycle import Life

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


class Sheet:
    """Filled by one call at a time."""

    def __init__(self, life: Life, level: ProfileLevel) -> None:
        self.level = level
        self.events: tuple[ProfileEvent, ...] = ()
        # The call that fills it.
        self.holder: object = None
        self.step_times_ns: list[int] = []
        self._life = life

    def begin(self, holder: object) -> None:
        """Serve a call; what it held of an earlier one is gone."""
        self._life.require("use")
        if self.holder is not None:
            raise WrongState(
                "the profile handle is already in use by another call; create one per queued call",
                st.QNN_GRAPH_ERROR_PROFILE_IN_USE,
            )
        self.events = ()
        self.step_times_ns = []
        self.holder = holder

    def abandon(self, holder: object) -> None:
        """Let go of the handle if it is this call's; twice does nothing."""
        if self.holder is holder:
            self.holder = None

    def fill(
        self, record: Record, called_ns: int, sent_ns: int, returned_ns: int, deadline_at: int, hvx_threads: int
    ) -> None:
        """The call is over: what it cost."""
        self.events = execute_events(
            record, called_ns, sent_ns, returned_ns, deadline_at, hvx_threads, self.step_times_ns, self.level
        )

    @contextlib.contextmanager
    def filling(self) -> Iterator[Callable[[ProfileEvent], None]]:
        """For calls that are not executions: taken for as long as they last, filled with one event."""
        holder = object()
        self.begin(holder)

        def fill(event: ProfileEvent) -> None:
            self.events = (event,)

        try:
            yield fill
        finally:
            self.abandon(holder)


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
