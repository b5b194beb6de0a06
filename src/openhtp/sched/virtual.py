"""The virtual clock: a heap of events, an engine that only takes time, and the real scheduler.

What runs here is the scheduler that also runs live; only the source of time and the engine differ. Used by
the planner and by tests. Nothing here waits, so an hour of scenario takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from msgspec import Struct

from openhtp.core.errors import InternalError, InvalidArgument
from openhtp.sched.actions import Action, ArmTimer, AskYield, Finish, Grant, Release, Start
from openhtp.sched.events import Event, StepDone, StepYielded, Submitted, TimerFired
from openhtp.sched.scheduler import Scheduler

Log = list[tuple[Event, list[Action]]]
Observer = Callable[[Event, list[Action]], None]
Caller = Callable[[int], Event | None]

# At equal times requests come before answers, so that a hand-over at an instant sees all who ask at that
# instant; timers come last, so that what ends exactly at its timeout has ended in time.
_REQUEST, _CALL, _ANSWER, _TIMER = 0, 1, 2, 3
_END_OF_TIME = 1 << 100


class Work(Struct, frozen=True, kw_only=True, gc=False):
    """How long a job takes, and what it costs to stop it.

    Either ``eviction_ns`` is the whole time from the request to the release, work going on meanwhile; or the
    eviction is modelled: on to the next yield point (every ``yield_every_ns``; None: the ends of steps), then
    ``save_ns`` for its VTCM and ``wake_ns`` for the one that waits. Coming back takes ``restore_ns``.
    """

    step_ns: tuple[int, ...]
    eviction_ns: int | None = None
    yield_every_ns: int | None = None
    save_ns: int = 0
    wake_ns: int = 0
    restore_ns: int = 0

    @property
    def total_ns(self) -> int:
        """Time of one undisturbed run."""
        return sum(self.step_ns)


class JobRun(Struct, eq=False, gc=False):
    """One job inside the modelled engine: what is left of its step, when it will answer, what it has had.

    ``held_ns`` is the time it held resources, ``yields`` how often it was paused; ``tag`` belongs to whoever
    submitted the job.
    """

    work: Work
    left: int
    tag: Any = None
    # The answer that counts, by its place in the heap. Earlier ones were overtaken by a yield.
    sequence: int = 0
    started: int = 0  # when the work itself goes on, after any restore
    due: int = 0
    granted: int | None = None
    held_ns: int = 0
    yields: int = 0
    resumes: bool = False


Finished = Callable[[Finish, JobRun, int], None]


class VirtualLoop:
    """Drives a scheduler on virtual time.

    ``at`` schedules an event for its own ``t``; ``run_until`` delivers what is due. ``observe`` is called
    after every event with the actions it caused, ``finished`` at the end of every job; both may schedule
    more.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        keep_log: bool = True,
        observe: Observer | None = None,
        finished: Finished | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.log: Log = []
        self.now = 0
        self.handled = 0
        self._keep_log = keep_log
        self._observe = observe
        self._finished = finished
        self._heap: list[tuple[int, int, int, Any]] = []
        self._sequence = 0
        self._runs: dict[int, JobRun] = {}

    def at(self, event: Event, work: Work | None = None) -> None:
        """Deliver ``event`` at its ``t``. A Submitted needs the ``work`` it stands for."""
        if event.t < self.now:
            raise InvalidArgument(f"{type(event).__name__} at {event.t} lies before now, {self.now}")
        if type(event) is Submitted:
            if work is None or len(work.step_ns) != event.steps:
                raise InvalidArgument(f"job {event.job} needs work for each of its {event.steps} steps")
            self.expect(event.job, work)
        self._push(event.t, _REQUEST, event)

    def call_at(self, t: int, caller: Caller) -> None:
        """Ask ``caller`` at time ``t`` for an event to deliver then; None for nothing.

        For sources that know only at that moment what they want. It must ``expect`` the jobs that it submits.
        """
        self._sequence = sequence = self._sequence + 1
        heappush(self._heap, (max(self.now, t), _CALL, sequence, caller))

    def expect(self, job: int, work: Work, tag: Any = None) -> None:
        """Tell the modelled engine what a job will be like."""
        self._runs[job] = JobRun(work, work.step_ns[0], tag)

    def run_until(self, t: int | None = None) -> int:
        """Deliver events up to and including time ``t`` (all of them if None); return how many so far."""
        heap = self._heap
        handle = self.scheduler.handle
        observe = self._observe
        log = self.log if self._keep_log else None
        runs = self._runs
        start, ask_yield, finished = self._start, self._ask_yield, self._finished
        end = _END_OF_TIME if t is None else t
        while heap and heap[0][0] <= end:
            now, order, sequence, event = heappop(heap)
            if order == _ANSWER:
                run = runs.get(event.job)
                if run is None or run.sequence != sequence:
                    continue  # replaced by an earlier answer
            self.now = now
            if order == _CALL:
                event = event(now)
                if event is None:
                    continue
            actions = handle(event)
            self.handled += 1
            for action in actions:
                # Starts and grants are by far the most frequent; this loop is the planner's speed.
                kind = type(action)
                if kind is Start:
                    start(action, now)  # type: ignore[arg-type]
                elif kind is Release:
                    run = runs[action.job]  # type: ignore[union-attr]
                    run.held_ns += now - run.granted  # type: ignore[operator]
                    run.granted = None
                    if action.paused:  # type: ignore[union-attr]
                        run.yields += 1
                        run.resumes = True
                elif kind is Grant:
                    continue
                elif kind is Finish:
                    run = runs.pop(action.job)  # type: ignore[union-attr]
                    if finished is not None:
                        finished(action, run, now)  # type: ignore[arg-type]
                elif kind is AskYield:
                    ask_yield(action, now)  # type: ignore[arg-type]
                elif kind is ArmTimer:
                    at = max(now, action.at)  # type: ignore[union-attr]
                    self._push(at, _TIMER, TimerFired(t=at, timer=action.timer))  # type: ignore[union-attr]
            if log is not None:
                log.append((event, actions))
            if observe is not None:
                observe(event, actions)
        if t is not None:
            self.now = max(self.now, t)
        return self.handled

    @property
    def idle(self) -> bool:
        """Whether nothing is left to happen."""
        return not self._heap

    def _push(self, t: int, order: int, event: Event) -> None:
        self._sequence += 1
        heappush(self._heap, (t, order, self._sequence, event))

    def _answer(self, run: JobRun, event: StepDone | StepYielded) -> None:
        """Let the job answer with this event, and with no other."""
        run.due = due = event.t
        run.sequence = self._sequence = sequence = self._sequence + 1
        heappush(self._heap, (due, _ANSWER, sequence, event))

    def _start(self, action: Start, now: int) -> None:
        run = self._runs[action.job]
        due = now + (run.left or run.work.step_ns[action.step])
        run.started = now
        if run.granted is None:
            run.granted = now
            if run.resumes:
                restore = run.work.restore_ns
                run.started += restore
                due += restore
                run.resumes = False
        run.left = 0  # all of it, unless it is stopped before
        # As in ``_answer``, which would be one more call for every step there is.
        run.due = due
        run.sequence = self._sequence = sequence = self._sequence + 1
        heappush(self._heap, (due, _ANSWER, sequence, StepDone(due, action.job, action.token)))

    def _ask_yield(self, action: AskYield, now: int) -> None:
        """Find the point where the step can be left; answer there rather than at its end, if sooner."""
        run = self._runs[action.job]
        work = run.work
        end = run.due
        if work.eviction_ns is not None:
            stop = free = now + work.eviction_ns
        elif work.yield_every_ns is not None:
            every = max(1, work.yield_every_ns)
            progress = max(0, now - run.started)
            stop = run.started + -(-progress // every) * every
            free = stop + work.save_ns + work.wake_ns
        else:
            self._end_step_with_saving(action, run, work)
            return
        if stop >= end:
            return
        run.left = end - max(stop, run.started)
        self._answer(run, StepYielded(free, action.job, action.token))

    def _end_step_with_saving(self, action: AskYield, run: JobRun, work: Work) -> None:
        job = self.scheduler.jobs.get(action.job)
        if job is None:
            raise InternalError(f"job {action.job} was asked to yield but is over")
        if job.step + 1 < job.steps:
            self._answer(run, StepDone(run.due + work.save_ns + work.wake_ns, action.job, action.token))
