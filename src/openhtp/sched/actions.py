"""What the scheduler wants done, in the imperative. The loop does it and reports back as events."""

from __future__ import annotations

from msgspec import Struct

from openhtp.core.enumerations import Outcome as Outcome  # part of ``Finish``, so it can be had from here


class Start(Struct, frozen=True, tag=True, gc=False):
    """Run one step of a job. The answer (StepDone or StepYielded) carries the token; old ones are ignored."""

    job: int
    step: int
    token: int


class AskYield(Struct, frozen=True, tag=True, gc=False):
    """A more urgent client waits: stop at the next possible point."""

    job: int
    token: int


class Finish(Struct, frozen=True, tag=True, gc=False):
    """The job is over; told exactly once for every Submitted."""

    job: int
    outcome: Outcome


class ArmTimer(Struct, frozen=True, tag=True, gc=False):
    """Send TimerFired(timer) at or after ``at``."""

    timer: int
    at: int


class Grant(Struct, frozen=True, tag=True, gc=False):
    """The job now holds these resources. VTCM is a byte range of its core."""

    job: int
    core: int
    hmx: tuple[int, ...]
    hvx: tuple[int, ...]
    vtcm_start: int
    vtcm_bytes: int


class Release(Struct, frozen=True, tag=True, gc=False):
    """The job holds nothing any more; ``paused`` tells a pre-empted job from a finished one."""

    job: int
    paused: bool


class Refuse(Struct, frozen=True, tag=True, gc=False):
    """A priority change came too late; ``client`` is the one that had started."""

    client: int
    reason: str


Action = Start | AskYield | Finish | ArmTimer | Grant | Release | Refuse
