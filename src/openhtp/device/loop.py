"""The loop: gives events to the scheduler and carries out the scheduler's actions.

One thread runs the loop. Between two looks at the inbox it computes one step, or handles the end of a step where
several jobs run side by side. A more urgent job takes over at the end of a step: pre-emption is cooperative, as on
the chip.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from openhtp.core.errors import InternalError, QnnError
from openhtp.device.clock import Clock
from openhtp.device.runner import ONE_BY_ONE, Ended, Post, Runner
from openhtp.engine.protocol import RowWatch
from openhtp.sched.actions import Action, ArmTimer, AskYield, Finish, Grant, Outcome, Refuse, Release, Start
from openhtp.sched.events import AbortRequested, Event, StepDone, StepYielded, TimerFired
from openhtp.sched.recorder import Observer
from openhtp.sched.scheduler import Scheduler

# Looking at sockets costs about as much as a trivial step, so short steps share one look.
POLL_INTERVAL_NS = 100_000
# Timers of ended jobs are thrown away once there are this many timers, and twice as many as live ones.
TIMERS_KEPT = 1024
# After so long in a row of steps the loop comes round, as signals of the process are handled in between.
LONGEST_ROW_NS = 5_000_000

log = logging.getLogger(__name__)


class Inbox(Protocol):
    """Where requests come from. ``poll`` hands them on and returns."""

    def poll(self, timeout_ns: int | None) -> None:
        """Wait at most this long (None: until something comes), then deliver everything that has come."""

    def flush(self) -> None:
        """Send completions that were held back to share one wake-up."""


class JobKeeper(Protocol):
    """Keeps the executions of jobs, and reacts to their grants, pauses and ends."""

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

    def must_know_each_step(self, job: int) -> bool:
        """Whether the end of every step has to be told, and not only that of the last of several in a row."""

    def failed(self, job: int, error: Exception) -> None:
        """Work for a job went wrong: the job is to end with this error, at the end of its step."""

    def broken(self, job: int, error: Exception) -> None:
        """After a severe failure the state of a job is no longer known: its client must go."""


class SchedulerFailed(Exception):
    """The scheduler failed at an event. Its state is sound again once the client concerned is expelled."""


class Loop:
    """Drives one scheduler with one clock. All methods belong to the thread that runs the loop."""

    def __init__(self, scheduler: Scheduler, clock: Clock, runner: Runner, keeper: JobKeeper) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self.held = False
        # The device's one instrument: while a recording runs, it sees every event and the resulting actions.
        self.observe: Observer | None = None
        self._runner = runner
        self._keeper = keeper
        self._timers: list[tuple[int, int]] = []
        self._timers_kept = TIMERS_KEPT
        # Steps that could not be started, and calls to make before the next step is computed.
        self._not_started: deque[Ended | Callable[[], None]] = deque()
        self._last_poll = 0
        self._news: int | None = None
        self._inbox: Inbox  # of the present turn
        self._do: dict[type, Callable[[int, Any], None]] = {
            Start: runner.start,
            AskYield: self._ask_yield,
            Finish: self._finish,
            ArmTimer: self._arm,
            Grant: lambda t, action: keeper.granted(action, t),
            Release: lambda t, action: keeper.released(action, t),
            Refuse: lambda t, action: None,
        }

    def attach(self, post: Post, news: int | None = None) -> None:
        """Give this loop a thread of its own, which sleeps in the inbox and is woken by ``post``.

        ``news`` is a descriptor that is readable while there is something in the inbox, what is posted included.
        """
        self._news = news
        self._runner.attach(post, self._go_on)

    def handle(self, event: Event) -> list[Action]:
        """Give the scheduler one event and carry out the actions that it returns.

        A refused event raises QnnError and changes nothing. Any other failure concerns only its own job or
        client: the actions for all others are carried out.
        """
        actions: list[Action] = []
        failure: Exception | None = None
        try:
            self.scheduler.handle(event, actions)
        except Exception as error:
            if isinstance(error, QnnError) and not isinstance(error, InternalError):
                raise
            failure = error
        if self.observe is not None:
            self._tell(event, actions)
        t = event.t
        do = self._do
        for action in actions:
            try:
                do[type(action)](t, action)
            except Exception as error:
                self._not_done(action, error)
        if failure is not None:
            raise SchedulerFailed(f"the scheduler failed at {event}: {failure!r}") from failure
        return actions

    def _tell(self, event: Event, actions: list[Action]) -> None:
        """Show an event to the recorder. A recorder that fails is removed: it must not stop the work."""
        try:
            assert self.observe is not None
            self.observe(event, actions)
        except Exception:
            log.exception("recording ends at %s", event)
            self.observe = None

    def _not_done(self, action: Any, error: Exception) -> None:
        """An action failed. Only its own job suffers; the other actions are still carried out."""
        log.error("%s failed", action, exc_info=error)
        if isinstance(action, Finish):
            self._keeper.broken(action.job, error)
        elif not isinstance(action, Refuse):
            job = action.timer if isinstance(action, ArmTimer) else action.job
            self._keeper.failed(job, error)
        if isinstance(action, Start):
            self._not_started.append(Ended(action.job, action.step, action.token))

    def _lost(self, job: int, error: SchedulerFailed) -> None:
        """The scheduler failed at an event that came from no request, so no reply can report the failure."""
        log.error("job %d", job, exc_info=error)
        self._keeper.broken(job, error)

    def hurry(self, client: int) -> None:
        """A client was removed: its jobs that only wait for the clock, or to be begun, end now."""
        removed = self.scheduler.clients.get(client)
        for job in list(removed.queue) if removed is not None else ():
            token = self._runner.hurry(self.clock.now(), job.number)
            if token is not None:
                self.handle(StepYielded(t=self.clock.now(), job=job.number, token=token))

    def end_early(self, event: AbortRequested | TimerFired, job: int) -> None:
        """Have the scheduler end a job; if it is running, its step is stopped where that is possible."""
        self.handle(event)
        self._runner.stop(job)

    def turn(self, inbox: Inbox, *, block: bool = True) -> bool:
        """Do one round: look at the inbox, fire timers, compute one step. False if there was nothing to do."""
        self._inbox = inbox
        now = self.clock.now()
        due = self._next_due(now)
        if due is None or due > now or now - self._last_poll >= POLL_INTERVAL_NS:
            # No step is ready, or the last look was long ago: wait for a request or the next due time.
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
            self._compute(now)
        if not self._not_started and not self._runner.soon(self.clock.now()):
            inbox.flush()
        return True

    def _compute(self, now: int) -> None:
        ended = self._put_off() if self._not_started else self._runner.run_one(now)
        if ended is None:
            return
        job, step, token, yielded, began_ns, ended_ns, steps, is_known = ended
        if not is_known:
            end = self.clock.now()
            if end - self._last_poll >= POLL_INTERVAL_NS:
                # Requests that came while the step ran are read before the scheduler learns of its end. Otherwise
                # the next step of the same job would start, and a more urgent request would wait for it, too.
                self._inbox.poll(0)
                self._last_poll = end
            end = end if ended_ns is None else ended_ns
            self._fire_timers(end)
            if not yielded:
                try:
                    self._keeper.step_ended(job, step, now if began_ns is None else began_ns, end)
                except Exception as error:
                    self._end_not_told(job, step, error)
        try:
            if yielded:
                self.handle(StepYielded(t=self.clock.now(), job=job, token=token))
            else:
                self.handle(StepDone(self.clock.now(), job, token, steps))
        except SchedulerFailed as error:
            self._lost(job, error)

    def _go_on(self, job: int, step: int, token: int, steps: int, began_ns: int, ended_ns: int) -> RowWatch | None:
        """A step was computed on this thread. Look at the inbox; unless the job simply goes on, return None.

        If it does, the rest of the turn and the scheduler are skipped, and while nothing comes, steps may even
        follow each other without coming back here: yield points must cost almost nothing.
        """
        self.look(ended_ns)
        if self._timers:
            self._fire_timers(ended_ns)
        try:
            self._keeper.step_ended(job, step, began_ns, ended_ns)
        except Exception as error:
            self._end_not_told(job, step, error)
        if self.held or self._not_started or not self.scheduler.goes_on(job, token, steps):
            return None
        self._inbox.flush()
        return ONE_BY_ONE if self._keeper.must_know_each_step(job) else self.watch(ended_ns)

    def look(self, now: int) -> None:
        """Between two steps, look at the inbox unless the last look was a moment ago."""
        if now - self._last_poll >= POLL_INTERVAL_NS:
            self._inbox.poll(0)
            self._last_poll = now

    def watch(self, now: int) -> RowWatch:
        """What ends a row of steps that begins now."""
        if self._news is None:
            return ONE_BY_ONE
        until_ns = now + LONGEST_ROW_NS
        if self._timers:
            until_ns = min(until_ns, self._timers[0][0])
        return RowWatch(self._last_poll, POLL_INTERVAL_NS, until_ns, self._news)

    def _fire_timers(self, end: int) -> None:
        while self._timers and self._timers[0][0] < end:
            self._fire_timer(self.clock.now())

    def _end_not_told(self, job: int, step: int, error: Exception) -> None:
        log.error("the end of step %d of job %d", step, job, exc_info=error)
        self._keeper.failed(job, error)

    def later(self, call: Callable[[], None]) -> None:
        """Call this once all of the scheduler's actions are carried out."""
        self._not_started.append(call)

    def _put_off(self) -> Ended | None:
        first = self._not_started.popleft()
        if isinstance(first, tuple):
            return first
        first()
        return None

    def _fire_timer(self, t: int) -> None:
        _, timer = heapq.heappop(self._timers)
        try:
            self.end_early(TimerFired(t=t, timer=timer), timer)
        except SchedulerFailed as error:
            self._lost(timer, error)

    def _next_due(self, now: int) -> int | None:
        """When the next timer or step end is due; ``now`` if a step is ready to be computed."""
        due = now if self._not_started else self._runner.next_at(now)
        if self.held:
            due = None
        if self._timers and (due is None or self._timers[0][0] < due):
            due = self._timers[0][0]
        return due

    def _patience(self, due: int | None, now: int, *, block: bool) -> int | None:
        if not block:
            return 0
        return None if due is None else max(0, due - now)

    def _ask_yield(self, t: int, action: AskYield) -> None:
        self._keeper.yield_asked(action, t)
        self._runner.ask_yield(t, action)

    def _finish(self, t: int, action: Finish) -> None:
        self._runner.forget(action.job)
        self._keeper.finished(action.job, action.outcome, t)

    def _arm(self, t: int, action: ArmTimer) -> None:
        heapq.heappush(self._timers, (action.at, action.timer))
        if len(self._timers) > self._timers_kept:
            # Otherwise the timers of jobs that ended early would be kept until their timeouts.
            jobs = self.scheduler.jobs
            self._timers = [timer for timer in self._timers if timer[1] in jobs]
            heapq.heapify(self._timers)
            self._timers_kept = max(TIMERS_KEPT, 2 * len(self._timers))
