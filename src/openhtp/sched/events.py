"""Events, the scheduler's only input. Names are past tense; ``t`` is the time of delivery in nanoseconds.

Structs rather than dataclasses: two of these are made for every execution, and they are made in C. They are
tagged with their own name, so that a log of them can be written and read back, and they hold no references
that could form a cycle, so the garbage collector need not look at them.
"""

from __future__ import annotations

import enum

from msgspec import Struct


class ClientKind(enum.Enum):
    """A QNN graph always takes the HMX; an app (camera pipeline, audio...) takes what it asks for."""

    GRAPH = "graph"
    APP = "app"


class ClientAdded(Struct, frozen=True, kw_only=True, tag=True):
    """A graph was loaded, or an app was introduced. It asks for nothing yet."""

    t: int
    client: int
    priority: int
    kind: ClientKind = ClientKind.GRAPH
    pd: int = 0
    core: int = 0
    hmx: int = 1
    hvx: int = 1
    vtcm_bytes: int = 0
    # The page asked for; larger than vtcm_bytes means an overmap (VTCM sharing). None: the whole VTCM for
    # graphs, exactly vtcm_bytes for apps.
    page_bytes: int | None = None


class ClientRemoved(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """A graph was freed or its session ended. Its jobs finish as GONE, the running one at its step's end."""

    t: int
    client: int


class ClientExpelled(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """A client must go at once, whatever state it is in, because an event of it could not be handled."""

    t: int
    client: int


class HoldChanged(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Testing: jobs of a held client are queued, time out and are aborted, but do not start."""

    t: int
    client: int
    held: bool


class PriorityChanged(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """A client asks for another priority; refused once one of its jobs has started."""

    t: int
    client: int
    priority: int


class ThreadsChanged(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """A client asks for another number of HVX threads; refused once it was asked to run."""

    t: int
    client: int
    hvx: int


class ContextPriorityChanged(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """All graphs of a context ask for another priority: all of them get it, or none if one has started."""

    t: int
    clients: tuple[int, ...]
    priority: int


class Submitted(Struct, frozen=True, tag=True, gc=False):
    """A job was queued. ``timeout_at`` is absolute; ``job`` numbers are never reused.

    ``deadline_at`` only orders jobs (under a policy that looks at it); it ends nothing.
    """

    t: int
    job: int
    client: int
    steps: int = 1
    timeout_at: int | None = None
    deadline_at: int | None = None


class StepsFound(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """How many steps a queued job has is only known now, because its graph had to be loaded first."""

    t: int
    job: int
    steps: int


class StepDone(Struct, frozen=True, tag=True, gc=False):
    """The engine finished the step that ``token`` started, and as many after it as make ``steps`` in all.

    It may go on by itself only as long as ``Scheduler.goes_on`` says so.
    """

    t: int
    job: int
    token: int
    steps: int = 1


class StepYielded(Struct, frozen=True, tag=True, gc=False):
    """The engine stopped inside a step because it was asked to; the rest of the step remains to be run."""

    t: int
    job: int
    token: int


class AbortRequested(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """A signal or a cancel ends this job: at once if it waits, at its step's end if it runs."""

    t: int
    job: int


class TimerFired(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """A timer armed by ``ArmTimer`` is due."""

    t: int
    timer: int


Event = (
    ClientAdded
    | ClientRemoved
    | ClientExpelled
    | HoldChanged
    | PriorityChanged
    | ContextPriorityChanged
    | ThreadsChanged
    | Submitted
    | StepsFound
    | StepDone
    | StepYielded
    | AbortRequested
    | TimerFired
)
