"""Executions on the device, and the outlets that report their ends on the duct they came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from openhtp.core.errors import QnnError
from openhtp.engine.protocol import Run, StoppableRun
from openhtp.hw.clocks import Clocks
from openhtp.records.profile import Pause
from openhtp.rpc import frames
from openhtp.sched.timed import Pace

if TYPE_CHECKING:
    from openhtp.device.contexts import DeviceApp, DeviceGraph
    from openhtp.device.sessions import Session


@dataclass(slots=True, eq=False)
class Job:
    """An execution under way. The scheduler knows it by ``number``, the client by ``client_job``."""

    number: int
    client_job: int
    session: Session
    outlet: Reports
    graph: DeviceGraph | DeviceApp
    key: bytes
    runs: list[Run]
    received_ns: int
    profile_level: int
    # How long it takes on the wall clock, if that is not simply the time to compute it.
    pace: Pace | None = None
    # Whether its client waits for the end: the execution was called rather than queued.
    waited: bool = False
    started_ns: int | None = None
    yields: int = 0
    yield_asked_ns: int = 0
    pause_started_ns: int = 0
    release_ns: int = 0
    paused_ns: int = 0
    restore_ns: int = 0
    restore_began_ns: int = 0
    failure: QnnError | None = None
    computed: bool = False
    # Whether its runs were told to stop; they are of no use to another execution.
    stopped: bool = False
    # Whether it still takes a place in its context's queue.
    counted: bool = True
    step_times_ns: list[int] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    # For a detailed profile: how long its units took to be ready, and its clocks (both modelled).
    powered: tuple[int, Clocks] | None = None

    def leave_queue(self) -> None:
        """Free the job's place in the context's queue. Only the first call does so."""
        if self.counted:
            self.counted = False
            self.graph.context.pending -= 1

    def step(self, index: int) -> None:
        """Compute one step; a batch multiple runs the whole program once per piece of the batch."""
        per_run = self.graph.steps
        if index < per_run:
            self.runs[0].step(index)
        else:
            run, step = divmod(index, per_run)
            self.runs[run].step(step)

    def stop(self) -> None:
        """Interrupt the computation, if that is possible."""
        self.stopped = True
        for run in self.runs:
            if isinstance(run, StoppableRun):
                run.stop()


class Reports(Protocol):
    """Takes the news of how an execution ended."""

    def report(self, record: frames.Record, extra: bytes = b"") -> None:
        """Tell of an end; ``extra`` is a frame that belongs to it."""

    def report_failure(self, record: frames.Record, text: str) -> None:
        """Tell of a failure, in words."""


# Of the records in one packet.
_MOST_BYTES = frames.MAX_RECORDS * frames.RECORD.size


class Outlet:
    """News not yet sent. ``notify`` is called whenever there is more."""

    __slots__ = ("_notify", "extras", "records")

    def __init__(self, notify: Callable[[], None]) -> None:
        # Frames that go before the next record, and packed records that may share a packet.
        self.extras: list[bytes] = []
        self.records = bytearray()
        self._notify = notify

    def report(self, record: frames.Record, extra: bytes = b"") -> None:
        """Tell of an end; ``extra`` is a frame that belongs to it."""
        if extra:
            self.extras.append(extra)
        self.records += frames.RECORD.pack(*record)
        self._notify()

    def report_packed(self, records: bytes) -> None:
        """Tell of the ends of several executions, whose records are packed one behind the other."""
        self.records += records
        self._notify()

    def report_failure(self, record: frames.Record, text: str) -> None:
        """Tell of a failure, in words."""
        head = frames.BATCH_HEAD.pack(frames.FAILED, 0, 1)
        self.extras.append(head + frames.RECORD.pack(*record) + text.encode()[:4096])
        self._notify()

    def packets(self) -> list[bytes]:
        """Take all news as packets, in order."""
        packets, self.extras = self.extras, []
        records, self.records = self.records, bytearray()
        for start in range(0, len(records), _MOST_BYTES):
            part = records[start : start + _MOST_BYTES]
            packets.append(frames.BATCH_HEAD.pack(frames.DONE, 0, len(part) // frames.RECORD.size) + part)
        return packets
