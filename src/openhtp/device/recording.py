"""The recording of events on the device: a trace that a client can take away."""

from __future__ import annotations

from collections.abc import Callable

from openhtp.records.trace import ClocksChanged, Queued, Record, Stepped, Trace, Track, Units, trace_to_bytes
from openhtp.sched.recorder import ScheduleRecorder
from openhtp.sched.scheduler import Scheduler
from openhtp.sched.timed import Pace

# About 100 MB; a recording that was forgotten must not fill the machine.
MAX_RECORDS = 1_000_000


class Recording:
    """A bounded list of records. While it is off, it holds nothing and costs nothing.

    ``name_of`` returns the name of a client, ``work_of`` the duration of a job if that is not simply the time to
    compute it.
    """

    def __init__(
        self, scheduler: Scheduler, name_of: Callable[[int], str], work_of: Callable[[int], Pace | None]
    ) -> None:
        self.enabled = False
        self._scheduler = scheduler
        self._name_of = name_of
        self._work_of = work_of
        self._tracks: dict[int, Track] = {}
        self._records: list[Record] = []
        self._dropped = 0

    def start(self, t: int) -> ScheduleRecorder:
        """Record from now on; returns the observer for the loop."""
        self.enabled = True
        recorder = ScheduleRecorder(self._keep, self._work_of)
        recorder.begin(list(self._scheduler.jobs.values()), t)
        return recorder

    def stop(self) -> None:
        """Record no more; the records so far can still be taken."""
        self.enabled = False

    def step(self, job: int, step: int, start_ns: int, end_ns: int) -> None:
        """A step was computed; only its runner knows when."""
        self._keep(Stepped(start_ns, job, step, end_ns))

    def clocks(self, changed: ClocksChanged) -> None:
        """Votes gave a core other clocks."""
        if self.enabled:
            self._keep(changed)

    def take(self) -> bytes:
        """Pack all that was recorded, and start anew."""
        has = self._scheduler.resources
        units = Units(cores=has.cores, hmx=has.hmx, hvx=has.hvx, vtcm_bytes=has.vtcm_bytes)
        trace = Trace(units=units, tracks=self._tracks, records=self._records, dropped=self._dropped)
        data = trace_to_bytes(trace)
        self._tracks, self._records, self._dropped = {}, [], 0
        return data

    def _keep(self, record: Record) -> None:
        if len(self._records) >= MAX_RECORDS:
            self._dropped += 1
            return
        self._records.append(record)
        if type(record) is Queued and record.client not in self._tracks:
            self._tracks[record.client] = self._track(record.client)

    def _track(self, number: int) -> Track:
        client = self._scheduler.clients[number]
        has = client.demand
        return Track(
            name=self._name_of(number),
            kind="graph" if has.is_graph else "app",
            session=has.pd,
            core=client.core,
            priority=has.priority,
        )
