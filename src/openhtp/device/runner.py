"""Runners compute the steps that the scheduler starts, on the loop's thread, at a modelled time or elsewhere."""

from __future__ import annotations

import contextlib
import heapq
import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import NamedTuple, Protocol, TypeVar

from openhtp.core.errors import ExecutionError, QnnError
from openhtp.device.answers import bare, in_words
from openhtp.device.jobs import Job
from openhtp.engine.protocol import NOT_IN_A_ROW, ComputeRow, RowDone, RowWatch, Run
from openhtp.sched.actions import AskYield, Start
from openhtp.sched.timed import Pace, TimedRun

log = logging.getLogger(__name__)

# Beginning a row of fewer steps takes longer than it saves.
WORTH_A_ROW = 4
# A completion may wait to share a wake-up with the next one only if the next step is shorter than this.
SHORT_STEP_NS = 50_000


class Ended(NamedTuple):
    """A step that ended, or stopped because it was asked to.

    ``began_ns`` and ``ended_ns`` are set for steps that were not computed within ``run_one``. The step is the last
    of ``steps`` that were computed in a row; ``told`` says that the loop already knows the end of each of them.
    """

    job: int
    step: int
    token: int
    yielded: bool = False
    began_ns: int | None = None
    ended_ns: int | None = None
    steps: int = 1
    told: bool = False


# Calls a function on the loop's thread; may be called from any thread.
Post = Callable[[Callable[[], None]], None]
# Takes the end of a step that was computed on the loop's thread: job, step, token of the first step in the row,
# length of the row, and when this step began and ended. Returns None unless the next step is to follow at once.
# Otherwise it returns what ends a row of further steps, of which only the last has to be told; ``ONE_BY_ONE`` if
# each has to be.
GoOn = Callable[[int, int, int, int, int, int], RowWatch | None]
ONE_BY_ONE = RowWatch(0, 0, 0, -1)


class Runner(Protocol):
    """Runs steps when the loop says so, and hands over their ends one at a time."""

    def attach(self, post: Post, go_on: GoOn) -> None:
        """The loop has a thread of its own.

        So steps may be computed on other threads, and their ends posted to the loop's. A runner that computes on
        the loop's thread asks between two steps whether to ``go_on``.
        """

    def start(self, t: int, action: Start) -> None:
        """Take a step on."""

    def ask_yield(self, t: int, action: AskYield) -> None:
        """Stop a step early if that is possible; otherwise the job yields at the end of the step."""

    def hurry(self, t: int, job: int) -> int | None:
        """The job's client has gone: end a step now that only waits for the wall clock, or interrupt it.

        A step that has not begun is forgotten, as the client's memory may be gone, too; its token is returned.
        """

    def stop(self, job: int) -> None:
        """A running job is to end: end its step now if whatever computes it can do that."""

    def forget(self, job: int) -> None:
        """A job is over."""

    def next_at(self, now: int) -> int | None:
        """When ``run_one`` has something to do; None if nothing was started."""

    def run_one(self, now: int) -> Ended | None:
        """Compute the next step."""

    def soon(self, now: int) -> bool:
        """Whether another step will end within a moment."""


def computed(run: Run | Job, step: int) -> QnnError | None:
    """Compute; an error inside a step is the execution's own failure, which is returned, and not the device's."""
    try:
        run.step(step)
    except QnnError as error:
        return bare(error)
    except Exception as error:
        log.info("step %d failed", step, exc_info=True)
        return ExecutionError(f"step {step} failed: {in_words(error)}")
    return None


def compute_row(run: Run, first: int, end: int, watch: RowWatch) -> RowDone:
    """Compute steps that follow each other at once, if the run can do that and each need not be told."""
    # Asked whether it is a RowRun, Python takes as long as for a cut.
    row: ComputeRow | None = None if watch is ONE_BY_ONE else getattr(run, "row", None)
    return NOT_IN_A_ROW if row is None else row(first, end, watch)


def compute_step(job: Job, step: int) -> None:
    """Compute a step of a job; if it fails, so does the job."""
    failure = computed(job, step)
    if failure is not None:
        job.failure = failure


def compute_whole(job: Job) -> None:
    """Compute all of a paced job when it first starts; from then on it only waits for the clock."""
    if not job.computed:
        job.computed = True
        for step in range(job.graph.steps * len(job.runs)):
            compute_step(job, step)


_Step = TypeVar("_Step", Start, Ended)


def _taken_out(steps: deque[_Step], job: int) -> int | None:
    """The token of a job's step that is taken out of these; None if there is none."""
    for index, step in enumerate(steps):
        if step.job == job:
            del steps[index]
            return step.token
    return None


class InlineRunner:
    """Computes at once: the wall-clock device. Jobs with a pace of their own end by the clock."""

    def __init__(self, jobs: Mapping[int, Job], clock: Callable[[], int]) -> None:
        self._jobs = jobs
        self._clock = clock
        self._ready: deque[Start] = deque()
        # Steps that were asked to yield before they were begun.
        self._not_begun: deque[Ended] = deque()
        # Steps that other threads computed, if there are any.
        self._ended: deque[Ended] = deque()
        self._has_user_code = False
        self._paced = PacedSteps()
        self._go_on: GoOn | None = None

    def attach(self, post: Post, go_on: GoOn) -> None:
        """Where one step is computed at a time, no other thread is needed; steps of a job may follow at once."""
        self._go_on = go_on

    def start(self, t: int, action: Start) -> None:
        """Take a step on."""
        job = self._jobs.get(action.job)
        if job is None or job.pace is None:
            self._ready.append(action)
            if job is not None and job.graph.calls_user_code:
                self._has_user_code = True
            return
        compute_whole(job)
        self._paced.start(t, action, job.pace)

    def ask_yield(self, t: int, action: AskYield) -> None:
        """A step that has not begun does not begin; of the running steps, only paced ones can be stopped."""
        if not self._leave_out(action.job):
            self._paced.ask_yield(t, action)

    def hurry(self, t: int, job: int) -> int | None:
        """Forget a step that has not begun; of the running steps, only paced ones can end before their time."""
        token = _taken_out(self._ready, job)
        if token is None:
            token = _taken_out(self._not_begun, job)
        if token is None:
            self._paced.hurry(t, job)
        return token

    def stop(self, job: int) -> None:
        """Steps are left at their ends; one that has not begun does not begin."""
        self._leave_out(job)

    def _leave_out(self, job: int) -> bool:
        """If a job's step has not begun, it has yielded."""
        for index, start in enumerate(self._ready):
            if start.job == job:
                del self._ready[index]
                self._not_begun.append(Ended(start.job, start.step, start.token, yielded=True))
                return True
        return False

    def forget(self, job: int) -> None:
        """A job is over."""
        if self._paced.runs:
            self._paced.forget(job)

    def next_at(self, now: int) -> int | None:
        """Now, if any step is ready or has ended; otherwise when the next paced one ends."""
        if self._ready or self._not_begun or self._ended:
            return now
        return self._paced.next_at() if self._paced.ends else None

    def run_one(self, now: int) -> Ended | None:
        """Compute the oldest ready step and those that follow at once, unless a paced one is over."""
        if self._paced.ends:
            due = self._paced.next_at()
            if due is not None and due <= now:
                return Ended(*self._paced.pop())
        if self._not_begun:
            return self._not_begun.popleft()
        if not self._ready:
            return None
        action = self._ready.popleft()
        number, step, token = action.job, action.step, action.token
        job = self._jobs.get(number)
        if job is None:
            return Ended(number, step, token)
        clock, go_on, steps = self._clock, self._go_on, 1
        compute_step(job, step)
        end = clock()
        if go_on is not None:
            while (watch := go_on(number, step, token, steps, now, end)) is not None and not self._ready:
                done, now, end = self._compute_on(job, step + 1, watch)
                step += done
                steps += done
        job.graph.note_step(end - now)
        return Ended(number, step, token, steps=steps, told=go_on is not None)

    def _compute_on(self, job: Job, step: int, watch: RowWatch) -> RowDone:
        """Compute a step and, if the run can do that by itself, those after it."""
        if job.graph.steps - step >= WORTH_A_ROW:
            done = compute_row(job.runs[0], step, job.graph.steps, watch)
            if done.steps:
                return done
        began_ns = self._clock()
        compute_step(job, step)
        return RowDone(1, began_ns, self._clock())

    def soon(self, now: int) -> bool:
        """Whether an end waits to be handed over, or the next step is known to be short."""
        if self._ended:
            return True
        if not self._ready:
            return False
        job = self._jobs.get(self._ready[0].job)
        return job is not None and job.graph.step_ns < SHORT_STEP_NS


class ModelledRunner:
    """Computes too, but a model decides when its steps end: the virtual-clock device."""

    def __init__(self, jobs: Mapping[int, Job], step_ns: Callable[[Job, int], int]) -> None:
        self._jobs = jobs
        self._step_ns = step_ns
        self._paced = PacedSteps()

    def attach(self, post: Post, go_on: GoOn) -> None:
        """Do nothing: on a clock that jumps, nothing happens at the same time."""

    def start(self, t: int, action: Start) -> None:
        """Take a step on; it ends a modelled time later."""
        job = self._jobs.get(action.job)
        if job is None:
            work = Pace(step_ns=(0,) * (action.step + 1))
        elif job.pace is not None:
            compute_whole(job)
            work = job.pace
        else:
            steps = range(job.graph.steps * len(job.runs))
            work = Pace(step_ns=tuple(self._step_ns(job, step) for step in steps))
        self._paced.start(t, action, work)

    def ask_yield(self, t: int, action: AskYield) -> None:
        """Steps are left at their ends, unless the job's own pace says otherwise."""
        self._paced.ask_yield(t, action)

    def hurry(self, t: int, job: int) -> int | None:
        """Steps are left at their ends."""
        return None

    def stop(self, job: int) -> None:
        """Steps are left at their ends."""

    def forget(self, job: int) -> None:
        """A job is over."""
        self._paced.forget(job)

    def next_at(self, now: int) -> int | None:
        """When the earliest step ends."""
        return self._paced.next_at()

    def run_one(self, now: int) -> Ended | None:
        """Compute the step whose end has come."""
        due = self._paced.next_at()
        if due is None or due > now:
            return None
        ended = Ended(*self._paced.pop())
        job = self._jobs.get(ended.job)
        if job is not None and job.pace is None:
            compute_step(job, ended.step)
        return ended

    def soon(self, now: int) -> bool:
        """Do nothing: on a clock that jumps, nothing is shared."""
        return False


class BesideRunner:
    """Computes on other threads, so that the loop keeps reading requests however long a step takes."""

    def __init__(
        self,
        jobs: Mapping[int, Job],
        clock: Callable[[], int],
        threads: Executor,
        ended: deque[Ended] | None = None,
    ) -> None:
        """Steps that are over are put into ``ended``."""
        self.under_way = 0
        self._jobs = jobs
        self._clock = clock
        self._threads = threads
        self._post: Post
        self._ended: deque[Ended] = deque() if ended is None else ended

    def attach(self, post: Post, go_on: GoOn) -> None:
        """Ends are posted to the loop."""
        self._post = post

    def start(self, t: int, action: Start) -> None:
        """Hand a step to another thread."""
        job = self._jobs.get(action.job)

        def work() -> None:
            began_ns = self._clock()
            if job is not None:
                compute_step(job, action.step)
            ended = Ended(action.job, action.step, action.token, began_ns=began_ns, ended_ns=self._clock())
            self._post(lambda: self._ended.append(ended))

        with contextlib.suppress(RuntimeError):  # the system has no more threads: the existing ones do it
            self._threads.submit(work)
        self.under_way += 1

    def ask_yield(self, t: int, action: AskYield) -> None:
        """Steps are left at their ends."""

    def hurry(self, t: int, job: int) -> int | None:
        """End the step: nobody waits for its results."""
        self.stop(job)
        return None

    def stop(self, job: int) -> None:
        """Interrupt the step if its run can be interrupted; others are left at their ends."""
        running = self._jobs.get(job)
        if running is not None:
            running.stop()

    def forget(self, job: int) -> None:
        """Forget a job. Steps that were started still end, and their old tokens have them ignored."""

    def next_at(self, now: int) -> int | None:
        """Now, if a step has ended; otherwise the other thread will post the end."""
        return now if self._ended else None

    def run_one(self, now: int) -> Ended | None:
        """Hand over the step that ended first."""
        if not self._ended:
            return None
        self.under_way -= 1
        return self._ended.popleft()

    def soon(self, now: int) -> bool:
        """Whether another end is waiting to be handed over."""
        return bool(self._ended)


class SideBySideRunner(InlineRunner):
    """Computes a job that runs alone on the loop's thread; several jobs run on a thread each.

    Handing a step over and learning of its end takes two wake-ups, so graphs that are shorter stay on the loop's
    thread, beside the others. A graph that calls a user's functions never runs there.

    A loop that runs on its callers' threads is not attached, as no thread would
    wait for an end there. It computes step by step in turns.
    """

    def __init__(self, jobs: Mapping[int, Job], clock: Callable[[], int], most: int) -> None:
        """``most`` is how many jobs the scheduler may run at once."""
        super().__init__(jobs, clock)
        self._most = most
        self._beside: BesideRunner | None = None

    def attach(self, post: Post, go_on: GoOn) -> None:
        """Use other threads from now on: one starts at once if jobs may run side by side, more when needed."""
        super().attach(post, go_on)
        threads = ThreadPoolExecutor(self._most, thread_name_prefix="openhtp-steps")
        if self._most > 1:
            threads.submit(int)
        self._beside = BesideRunner(self._jobs, self._clock, threads, self._ended)
        self._beside.attach(post, go_on)

    def run_one(self, now: int) -> Ended | None:
        """Start steps that run side by side and return a step that ended; otherwise compute here."""
        beside = self._beside
        if beside is not None and (
            beside.under_way or len(self._ready) > 1 or (self._has_user_code and self._calls_out())
        ):
            self._hand_out(now, beside)
            ended = beside.run_one(now)
            if ended is not None:
                self._note_time(ended)
                return ended
        return super().run_one(now)

    def _hand_out(self, now: int, beside: BesideRunner) -> None:
        """Let other threads begin all ready steps, except those that would be over before a thread began."""
        for _ in range(len(self._ready)):
            action = self._ready.popleft()
            if self._is_short(action):
                self._ready.append(action)
            else:
                beside.start(now, action)

    def _calls_out(self) -> bool:
        """Whether the next step is of a graph that calls a user's functions."""
        job = self._jobs.get(self._ready[0].job) if self._ready else None
        return job is not None and job.graph.calls_user_code

    def _is_short(self, action: Start) -> bool:
        job = self._jobs.get(action.job)
        # The steps of a graph that was cut are long, however short the latest one was.
        return job is None or (
            job.graph.steps == 1 and job.graph.step_ns < SHORT_STEP_NS and not job.graph.calls_user_code
        )

    def _note_time(self, ended: Ended) -> None:
        job = self._jobs.get(ended.job)
        if job is not None and ended.began_ns is not None and ended.ended_ns is not None:
            job.graph.note_step(ended.ended_ns - ended.began_ns)


# Ends that were replaced or belong to jobs that are over are thrown away when there are many.
ENDS_KEPT = 1024

_End = tuple[int, int, int]
"""The time of the end, the job and the token."""


class Due(NamedTuple):
    """A paced step that has ended, or only ``stopped``, and when its work had begun."""

    job: int
    step: int
    token: int
    stopped: bool
    began_ns: int


class PacedSteps:
    """Steps that end by the clock. A job's ``Pace`` tells how long it runs and how long stopping it takes."""

    def __init__(self) -> None:
        self.runs: dict[int, TimedRun] = {}
        self.ends: list[_End] = []
        # The end that counts for each job under way. Earlier ones were overtaken by a yield.
        self._awaited: dict[int, _End] = {}

    def start(self, t: int, action: Start, work: Pace) -> None:
        """Begin a job's step, or resume a step that was stopped."""
        run = self.runs.get(action.job)
        if run is None:
            run = self.runs[action.job] = TimedRun(work)
        self._await((run.start(t, action.step), action.job, action.token))

    def ask_yield(self, t: int, action: AskYield) -> None:
        """Stop at the next possible point, if the job is paced and that is before its end."""
        run = self.runs.get(action.job)
        if run is not None and run.ask_yield(t):
            self._await((run.due, action.job, action.token))

    def next_at(self) -> int | None:
        """When the next one ends or stops."""
        while self.ends:
            end = self.ends[0]
            if self._awaited.get(end[1]) is end:
                return end[0]
            heapq.heappop(self.ends)
        return None

    def pop(self) -> Due:
        """Take the step that is due. Call when ``next_at`` has come."""
        _, job, token = heapq.heappop(self.ends)
        del self._awaited[job]
        run = self.runs[job]
        return Due(job, run.step, token, run.stops, run.started)

    def hurry(self, t: int, job: int) -> None:
        """Let a job end now."""
        end = self._awaited.get(job)
        if end is not None and end[0] > t:
            run = self.runs[job]
            run.due, run.stops = t, False
            self._await((t, job, end[2]))

    def forget(self, job: int) -> None:
        """The job is over, however it ended."""
        self.runs.pop(job, None)
        self._awaited.pop(job, None)

    def _await(self, end: _End) -> None:
        self._awaited[end[1]] = end
        heapq.heappush(self.ends, end)
        if len(self.ends) > ENDS_KEPT + 2 * len(self._awaited):
            self.ends = sorted(self._awaited.values())
