"""Jobs that hold resources at the same time are computed at the same time, each on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from openhtp.device.jobs import Job
from openhtp.device.runner import SHORT_STEP_NS, BesideRunner, Ended, GoOn, InlineRunner, Post
from openhtp.sched.actions import Start


class SideBySideRunner(InlineRunner):
    """A job that runs alone is computed on the loop's thread; where several run, each is on another.

    Handing a step over and hearing of its end takes two wake-ups, so graphs that are shorter than that stay on the
    loop's thread, beside the others. A loop that runs on its callers' threads is attached to nothing, as nobody
    could hear of an end there, and computes step by step in turns.
    """

    def __init__(self, jobs: Mapping[int, Job], clock: Callable[[], int], most: int) -> None:
        """``most`` is how many jobs the scheduler may run at once."""
        super().__init__(jobs, clock)
        self._most = most
        self._beside: BesideRunner | None = None

    def attach(self, post: Post, go_on: GoOn) -> None:
        """From now on use other threads: one that is there at once, more when they are needed."""
        super().attach(post, go_on)
        threads = ThreadPoolExecutor(self._most, thread_name_prefix="openhtp-steps")
        threads.submit(int)
        self._beside = BesideRunner(self._jobs, self._clock, threads)
        self._beside.attach(post, go_on)

    def next_at(self, now: int) -> int | None:
        """Now, if any step is ready or has ended; else when the next paced one ends."""
        if self._beside is not None and self._beside.soon(now):
            return now
        return super().next_at(now)

    def run_one(self, now: int) -> Ended | None:
        """Hand out what runs side by side and hand over what ended; else compute, as there is nobody beside."""
        beside = self._beside
        if beside is not None and (beside.under_way or len(self._ready) > 1):
            self._hand_out(now, beside)
            ended = beside.run_one(now)
            if ended is not None:
                self._note_time(ended)
                return ended
        return super().run_one(now)

    def soon(self, now: int) -> bool:
        """Whether an end waits to be handed over, or the next step is known to be short."""
        return (self._beside is not None and self._beside.soon(now)) or super().soon(now)

    def _hand_out(self, now: int, beside: BesideRunner) -> None:
        """Let other threads begin all that is ready, except what is over before they would have begun."""
        for _ in range(len(self._ready)):
            action = self._ready.popleft()
            if self._is_short(action):
                self._ready.append(action)
            else:
                beside.start(now, action)

    def _is_short(self, action: Start) -> bool:
        job = self._jobs.get(action.job)
        # The steps of a graph that was cut are long, whatever the one was that ran last.
        return job is None or (job.graph.steps == 1 and job.graph.last_step_ns < SHORT_STEP_NS)

    def _note_time(self, ended: Ended) -> None:
        job = self._jobs.get(ended.job)
        if job is not None and ended.began_ns is not None and ended.ended_ns is not None:
            job.graph.last_step_ns = ended.ended_ns - ended.began_ns
