"""Jobs that take a given time: when a step ends, what is left after a yield, what stopping and coming back cost.

The same arithmetic for plans, where time is virtual, and for the paced executions of a device on the wall clock.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct


class Pace(Struct, frozen=True, kw_only=True, gc=False):
    """How long a job takes, and what it costs to stop it.

    Either ``eviction_ns`` is the whole time from the request to the release, work going on meanwhile; or the
    eviction is modelled: on to the next yield point (every ``yield_every_ns``; None: the ends of steps), then
    ``save_ns`` for its VTCM and ``wake_ns`` for the one that waits. Coming back takes ``restore_ns``.

    A step that would have no more than ``slack_ns`` left where it can be stopped goes on to its end.
    """

    step_ns: tuple[int, ...]
    eviction_ns: int | None = None
    yield_every_ns: int | None = None
    save_ns: int = 0
    wake_ns: int = 0
    restore_ns: int = 0
    slack_ns: int = 0

    def __post_init__(self) -> None:
        times = (self.save_ns, self.wake_ns, self.restore_ns, self.slack_ns)
        all_times = (*self.step_ns, *times, self.eviction_ns or 0, self.yield_every_ns or 0)
        if not self.step_ns or min(all_times) < 0:
            raise ValueError(f"work of steps {self.step_ns}: expected at least one step and no negative times")

    @property
    def total_ns(self) -> int:
        """Time of one undisturbed run."""
        return sum(self.step_ns)

    @property
    def moves_vtcm(self) -> bool:
        """Whether saving and restoring are modelled; a fixed eviction has everything in its one number."""
        return self.eviction_ns is None

    def on_a_wall_clock(self) -> Pace:
        """The work with a slack of a quarter of the time to stop it.

        Clocks jitter: a step that should end just when it is asked to yield must not be stopped instead.
        """
        stop_ns = self.eviction_ns
        if stop_ns is None:
            stop_ns = (self.yield_every_ns or 0) + self.save_ns + self.wake_ns
        return msgspec.structs.replace(self, slack_ns=stop_ns // 4)


class TimedRun(Struct, eq=False, gc=False):
    """One job while it is under way.

    Its caller gives it the time; ``due`` is when it will answer. Then it ``stops`` inside its step because it was
    asked to, or it has run the step to its end.
    """

    work: Pace
    step: int = 0
    left_ns: int = 0  # of a step that was stopped; 0: the whole of it
    started: int = 0  # when the work itself goes on, after any restore
    due: int = 0
    stops: bool = False
    resumes: bool = False  # it has been asked to yield: whenever it starts again, its VTCM has to come back

    def start(self, now: int, step: int) -> int:
        """Begin a step, or go on with the one that was stopped; returns when it is due."""
        work = self.work
        started = now
        if self.resumes:
            started += work.restore_ns
            self.resumes = self.stops = False
        self.step = step
        self.started = started
        self.due = due = started + (self.left_ns or work.step_ns[step])
        self.left_ns = 0
        return due

    def ask_yield(self, now: int) -> bool:
        """Stop at the first possible point before the step's end; returns whether ``due`` has changed by it."""
        work = self.work
        self.resumes = True
        if now > self.due:
            return False  # it is over; only the news of it is still on its way
        if work.eviction_ns is not None:
            stop = free = now + work.eviction_ns
        elif work.yield_every_ns is not None:
            every = max(1, work.yield_every_ns)
            stop = self.started + -(-max(0, now - self.started) // every) * every
            free = stop + work.save_ns + work.wake_ns
        elif self.step + 1 < len(work.step_ns):
            self.due += work.save_ns + work.wake_ns
            return True
        else:
            return False
        if stop + work.slack_ns >= self.due:
            return False
        self.left_ns = self.due - max(stop, self.started)
        self.due = free
        self.stops = True
        return True

    def change_pace(self, work: Pace, now: int) -> bool:
        """Go on at another pace: what is left of the step takes as much longer as a whole one does.

        Returns whether ``due`` has changed by it. Saving and restoring that are under way are not.
        """
        before, self.work = self.work.step_ns[self.step], work
        after = work.step_ns[self.step]
        if self.left_ns:
            self.left_ns = max(1, self.left_ns * after // before)
        if self.stops or now >= self.due or before == after:
            return False
        since = max(now, self.started)
        self.due = since + max(1, (self.due - since) * after // before)
        return True
