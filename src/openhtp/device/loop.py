"""The loop: tells the scheduler what happened and does what it wants.

One thread runs it and, between two looks at the inbox, computes one step. So a step's end is where new
requests are seen, timeouts fire and a more urgent job takes over: pre-emption is cooperative, as on the chip.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Protocol

from openhtp.device.clock import Clock
from openhtp.device.runner import Runner
from openhtp.sched.actions import Action, ArmTimer, AskYield, Finish, Grant, Outcome, Refuse, Release, Start
from openhtp.sched.events import Event, StepDone, StepYielded, TimerFired
from openhtp.sched.scheduler import Scheduler

# Looking at sockets costs about as much as a trivial step, so short steps share one look.
POLL_INTERVAL_NS = 100_000


class Inbox(Protocol):
    """Where requests come from. ``poll`` hands them on and returns."""

    def poll(self, timeout_ns: int | None) -> None:
        """Wait at most this long (None: until something comes), then deliver everything that is there."""

    def flush(self) -> None:
        """Send what was held back to share one wake-up."""


class Observer(Protocol):
    """Who wants to know of grants, pauses and ends."""

    def finished(self, job: int, outcome: Outcome, t: int) -> None:
        """A job is over."""

    def granted(self, action: Grant, t: int) -> None:
        """A job got its resources."""

    def released(self, action: Release, t: int) -> None:
        """A job gave its resources back."""

    def yield_asked(self, action: AskYield, t: int) -> None:
        """A running job was asked to make room."""

    def step_ended(self, job: int, step: int, start_ns: int, end_ns: int) -> None:
        """A step was computed."""


class Loop:
    """Drives one scheduler with one clock. All methods belong to the thread that runs the loop."""

    def __init__(self, scheduler: Scheduler, clock: Clock, runner: Runner, observer: Observer) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self.held = False
        # Told of every event and what came of it, if anyone wants to know.
        self.observe: Callable[[Event, list[Action]], None] | None = None
        self._runner = runner
        self._observer = observer
        self._timers: list[tuple[int, int]] = []
        self._last_poll = 0
        self._do: dict[type, Callable[[int, Any], None]] = {
            Start: runner.start,
            AskYield: self._ask_yield,
            Finish: self._finish,
            ArmTimer: self._arm,
            Grant: lambda t, action: observer.granted(action, t),
            Release: lambda t, action: observer.released(action, t),
            Refuse: lambda t, action: None,
        }

    def handle(self, event: Event) -> list[Action]:
        """Give the scheduler one event and do what it answers."""
        actions = self.scheduler.handle(event)
        if self.observe is not None:
            self.observe(event, actions)
        t = event.t
        for action in actions:
            self._do[type(action)](t, action)
        return actions

    def turn(self, inbox: Inbox, *, block: bool = True) -> bool:
        """Do one round: look at the inbox, fire timers, compute one step. False if there was nothing to do."""
        now = self.clock.now()
        due = self._next_due(now)
        if due is None or due > now or now - self._last_poll >= POLL_INTERVAL_NS:
            # Nothing to compute right now: wait for a request or the next thing due.
            inbox.poll(self._patience(due, now, block=block))
            now = self._last_poll = self.clock.now()
            due = self._next_due(now)
        if due is None:
            return False
        if due > now:
            self.clock.advance_to(due)
            now = self.clock.now()
            if due > now:
                return True
        if self._timers and self._timers[0][0] <= now:
            self._fire_timer(now)
        elif not self.held:
            self._compute(now, inbox)
        if not self._runner.soon(self.clock.now()):
            inbox.flush()
        return True

    def _compute(self, now: int, inbox: Inbox) -> None:
        ended = self._runner.run_one(now)
        if ended is None:
            return
        job, step, token, yielded, began_ns = ended
        end = self.clock.now()
        if end - self._last_poll >= POLL_INTERVAL_NS:
            # What was asked while the step ran is heard before the end of the step is told, or else the next
            # step of the same job would start and the more urgent request wait for that one as well.
            inbox.poll(0)
            self._last_poll = self.clock.now()
        while self._timers and self._timers[0][0] < end:
            self._fire_timer(self.clock.now())
        if yielded:
            self.handle(StepYielded(t=self.clock.now(), job=job, token=token))
            return
        self._observer.step_ended(job, step, now if began_ns is None else began_ns, end)
        self.handle(StepDone(t=self.clock.now(), job=job, token=token))

    def _fire_timer(self, t: int) -> None:
        _, timer = heapq.heappop(self._timers)
        self.handle(TimerFired(t=t, timer=timer))

    def _next_due(self, now: int) -> int | None:
        """When the next timer or step end is due; ``now`` if a step is ready to be computed."""
        due = None if self.held else self._runner.next_at(now)
        if self._timers and (due is None or self._timers[0][0] < due):
            due = self._timers[0][0]
        return due

    def _patience(self, due: int | None, now: int, *, block: bool) -> int | None:
        if not block:
            return 0
        return None if due is None else max(0, due - now)

    def _ask_yield(self, t: int, action: AskYield) -> None:
        self._observer.yield_asked(action, t)
        self._runner.ask_yield(t, action)

    def _finish(self, t: int, action: Finish) -> None:
        self._runner.forget(action.job)
        self._observer.finished(action.job, action.outcome, t)

    def _arm(self, t: int, action: ArmTimer) -> None:
        heapq.heappush(self._timers, (action.at, action.timer))
