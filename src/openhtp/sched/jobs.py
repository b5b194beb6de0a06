"""Jobs and clients as the scheduler sees them, and the one table of a job's legal changes of state."""

from __future__ import annotations

import enum
from collections import deque

from msgspec import Struct

from openhtp.core.errors import InternalError
from openhtp.sched.actions import Outcome
from openhtp.sched.resources import Demand, Share


class JobState(enum.IntEnum):
    """Where a job is.

    * QUEUED: behind an earlier job of the same client; a client's jobs run one after the other.
    * WAITING: first of its client; asks for resources.
    * RUNNING: holds resources, a step is under way.
    * YIELDING: runs, but was asked to stop for someone more urgent.
    * PAUSED: was stopped, its VTCM is saved; asks for resources again.
    * ENDED: Finish was told.
    """

    QUEUED = 0
    WAITING = 1
    RUNNING = 2
    YIELDING = 3
    PAUSED = 4
    ENDED = 5


# IntEnum keys hash in C and the index is a plain int: this table is consulted on every execution.
LEGAL: tuple[frozenset[JobState], ...] = (
    frozenset({JobState.WAITING, JobState.ENDED}),
    frozenset({JobState.RUNNING, JobState.ENDED}),
    frozenset({JobState.YIELDING, JobState.ENDED}),
    frozenset({JobState.PAUSED, JobState.ENDED}),
    frozenset({JobState.RUNNING, JobState.ENDED}),
    frozenset(),
)
"""Which states may follow each state, indexed by state."""


class SchedulerClient:
    """A graph or an app: its demand and its jobs in order of arrival."""

    __slots__ = ("alone", "core", "demand", "gone", "held", "is_graph", "number", "queue", "started")

    def __init__(self, number: int, core: int, demand: Demand, alone: Share) -> None:
        self.number = number
        self.core = core
        self.demand = demand
        self.is_graph = demand.is_graph
        # Where it goes on an empty core; kept because that is the common case.
        self.alone = alone
        self.queue: deque[ScheduledJob] = deque()
        self.started = False
        self.gone = False
        self.held = False


class ScheduledJob(Struct, eq=False, gc=False):
    """One execution. ``rank`` and ``sequence`` order it: lower first; only a lower rank pre-empts.

    A struct because one is made for every execution. It is in no cycle once it has ended, hence no ``gc``.
    """

    number: int
    client: SchedulerClient
    sequence: int
    rank: int
    steps: int
    submitted_at: int
    deadline_at: int | None
    step: int = 0
    token: int = 0
    state: JobState = JobState.QUEUED
    share: Share | None = None
    # Set when the running job must end at the end of its step.
    ending: Outcome | None = None

    def move(self, state: JobState) -> None:
        """Change state; an illegal change is a bug of the scheduler and says so."""
        if state not in LEGAL[self.state]:
            raise InternalError(f"job {self.number} cannot go from {self.state.name} to {state.name}")
        self.state = state
