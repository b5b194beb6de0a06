"""The virtual clock: a heap of events, an engine that only takes time, and the real scheduler.

What runs here is the scheduler that also runs live; only the source of time and the engine differ. Used by
the planner and by tests. Nothing here waits, so an hour of scenario takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from openhtp.core.errors import InvalidArgument
from openhtp.sched.actions import Action, ArmTimer, AskYield, Finish, Grant, Release, Start
from openhtp.sched.events import Event, StepDone, StepYielded, Submitted, TimerFired
from openhtp.sched.recorder import Observer
from openhtp.sched.scheduler import Scheduler
from openhtp.sched.timed import Pace, TimedRun

Log = list[tuple[Event, list[Action]]]
Caller = Callable[[int], Event | None]

# At equal times requests come before answers, so that a hand-over at an instant sees all requests of that
# instant; timers come last, so that what ends exactly at its timeout has ended in time.
_REQUEST, _CALL, _ANSWER, _TIMER = 0, 1, 2, 3
_END_OF_TIME = 1 << 100


class JobRun(TimedRun, eq=False, gc=False):
    """One job inside the modelled engine, and what it has had.

    ``held_ns`` is the time it held resources, ``yields`` how often it was paused; ``tag`` belongs to the code that
    submitted the job.
    """

    tag: Any = None
    # The answer that counts, by its place in the heap. Earlier ones were overtaken by a yield.
    sequence: int = 0
    token: int = 0
    granted: int | None = None
    held_ns: int = 0
    yields: int = 0


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
        self.observe = observe
        self._finished = finished
        self._heap: list[tuple[int, int, int, Any]] = []
        self._sequence = 0
        self._runs: dict[int, JobRun] = {}

    def at(self, event: Event, work: Pace | None = None) -> None:
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

    def expect(self, job: int, work: Pace, tag: Any = None) -> None:
        """Tell the modelled engine what a job will be like."""
        self._runs[job] = JobRun(work, tag=tag)

    def work_of(self, job: int) -> Pace | None:
        """What a job under way is like."""
        run = self._runs.get(job)
        return None if run is None else run.work

    def change_pace(self, job: int, work: Pace) -> None:
        """A job that is under way, or waits, goes on like this from now on."""
        run = self._runs.get(job)
        if run is not None and run.change_pace(work, self.now):
            run.sequence = self._sequence + 1
            self._push(run.due, _ANSWER, StepDone(run.due, job, run.token))

    def run_until(self, t: int | None = None) -> int:
        """Deliver events up to and including time ``t`` (all of them if None); return how many so far."""
        heap = self._heap
        handle = self.scheduler.handle
        observe = self.observe
        log = self.log if self._keep_log else None
        runs = self._runs
        finished = self._finished
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
                    run = runs[action.job]  # type: ignore[union-attr]
                    if run.granted is None:
                        run.granted = now
                    due = run.start(now, action.step)  # type: ignore[union-attr]
                    run.token = action.token  # type: ignore[union-attr]
                    run.sequence = self._sequence = sequence = self._sequence + 1
                    step_done = StepDone(due, action.job, action.token)  # type: ignore[union-attr]
                    heappush(heap, (due, _ANSWER, sequence, step_done))
                elif kind is Release:
                    run = runs[action.job]  # type: ignore[union-attr]
                    run.held_ns += now - run.granted  # type: ignore[operator]
                    run.granted = None
                    if action.paused:  # type: ignore[union-attr]
                        run.yields += 1
                elif kind is Grant:
                    continue
                elif kind is Finish:
                    run = runs.pop(action.job)  # type: ignore[union-attr]
                    if finished is not None:
                        finished(action, run, now)  # type: ignore[arg-type]
                elif kind is AskYield:
                    self._ask_yield(action, now)  # type: ignore[arg-type]
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

    def _ask_yield(self, action: AskYield, now: int) -> None:
        """Let the job answer where it can stop, and no longer at the end of its step."""
        run = self._runs[action.job]
        if not run.ask_yield(now):
            return
        answer = StepYielded if run.stops else StepDone
        run.sequence = self._sequence + 1
        self._push(run.due, _ANSWER, answer(run.due, action.job, action.token))
