"""One core's resources: the jobs that hold them, wait for them, and are asked to yield.

The scheduler tells an arbiter that a job waits, ended or stopped; the arbiter answers with Grant, Start,
AskYield and Release. It is the device's compute resource manager:

* Jobs are considered in order ``(rank, sequence)``. The first that fits beside the holders starts.
* A job that does not fit asks for evictions: of one holder if one is enough, of several only when all of them
  rank below it. While it waits for them, nobody behind it may take what it is going to get.
* A job that nothing can be done for does not block lower ones: they may fill the gap, and it evicts them when
  its turn comes. Equals may not overtake it in a way that would delay it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from openhtp.sched.actions import Action, AskYield, Grant, Release, Start
from openhtp.sched.jobs import JobState, ScheduledJob
from openhtp.sched.resources import PARALLEL_WINDOW, DeviceResources, Share, place

_RUNNING = JobState.RUNNING
_YIELDING = JobState.YIELDING
_PAUSED = JobState.PAUSED
_WAITING = JobState.WAITING

_Waiter = tuple[int, int, ScheduledJob]


class Arbiter:
    """Holders and waiters of one core."""

    __slots__ = ("_device", "_next_token", "_number", "holders", "waiting", "waiting_apps")

    def __init__(self, number: int, device: DeviceResources, next_token: Callable[[], int]) -> None:
        self._number = number
        self._device = device
        self._next_token = next_token
        self.holders: list[ScheduledJob] = []
        # Sorted by (rank, sequence); a sequence is unique, so jobs themselves are never compared.
        self.waiting: list[_Waiter] = []
        self.waiting_apps = 0

    def ask(self, job: ScheduledJob, actions: list[Action]) -> None:
        """A job has become the first of its client: start it, or let it wait and evict the jobs in its way."""
        job.move(_WAITING)
        if not self.holders and not self.waiting:
            self._start(job, job.client.alone, actions)
            return
        self.enqueue(job)
        self.settle(actions)

    def release(self, job: ScheduledJob, actions: list[Action], *, paused: bool) -> None:
        """A job has stopped. A paused one asks again at once, with its old place in the order.

        The caller settles afterwards.
        """
        self.holders.remove(job)
        job.share = None
        actions.append(Release(job.number, paused))
        if paused:
            job.move(_PAUSED)
            self.enqueue(job)

    def enqueue(self, job: ScheduledJob) -> None:
        """Put a job among the waiting ones, in order. The caller settles afterwards."""
        insort(self.waiting, (job.rank, job.sequence, job))
        if not job.client.is_graph:
            self.waiting_apps += 1

    def forget(self, job: ScheduledJob) -> None:
        """A waiting job ended without running."""
        index = bisect_left(self.waiting, (job.rank, job.sequence))
        assert self.waiting[index][2] is job
        self._dequeue(index)

    def expel(self, client: int, actions: list[Action]) -> None:
        """Take everything from a client, in whatever state its jobs are. The caller settles afterwards."""
        actions += [Release(job.number, False) for job in self.holders if job.client.number == client]
        self.holders = [job for job in self.holders if job.client.number != client]
        self.waiting = [waiter for waiter in self.waiting if waiter[2].client.number != client]
        self.waiting_apps = sum(not waiter[2].client.is_graph for waiter in self.waiting)

    def _dequeue(self, index: int) -> ScheduledJob:
        job = self.waiting.pop(index)[2]
        if not job.client.is_graph:
            self.waiting_apps -= 1
        return job

    def settle(self, actions: list[Action]) -> None:
        """Start every waiting job that can start, in order, and ask for the evictions that are due."""
        waiting = self.waiting
        if waiting and not self.holders:
            job = self._dequeue(0)
            self._start(job, job.client.alone, actions)
        if not waiting or (not self.waiting_apps and self._settle_graphs(actions)):
            return
        claims: list[Share] = []  # what earlier jobs get once their evictions are through
        blocked: list[ScheduledJob] = []
        index = 0
        while index < len(waiting):
            job = waiting[index][2]
            share = self._room_for(job, claims, blocked)
            if share is not None:
                self._dequeue(index)
                self._start(job, share, actions)
                continue
            index += 1
            claim = self._claim(job, claims, actions)
            if claim is not None:
                claims.append(claim)
            else:
                blocked.append(job)

    def _settle_graphs(self, actions: list[Action]) -> bool:
        """Settle the usual case, one graph running and only graphs waiting; return whether this was it.

        Two graphs never run together, so only the first waiter counts: it evicts the holder or nobody does.
        Without this, every arrival would be compared with every waiter.
        """
        holders = self.holders
        holder = holders[0]
        if len(holders) > 1 or not holder.client.is_graph or self._device.parallel_graphs:
            return False
        if holder.rank > self.waiting[0][0] and holder.state is _RUNNING:
            holder.move(_YIELDING)
            actions.append(AskYield(holder.number, holder.token))
        return True

    def _room_for(self, job: ScheduledJob, claims: list[Share], blocked: list[ScheduledJob]) -> Share | None:
        """Where the job can go now without taking anything from those before it."""
        demand = job.client.demand
        if demand.is_graph and blocked:
            # Parallel graph execution looks at the front of the queue only.
            ahead = sum(other.client.is_graph for other in (*self.holders, *blocked))
            if ahead >= PARALLEL_WINDOW:
                return None
        shares = [*_shares(self.holders), *claims]
        share = place(shares, demand, self._device)
        if share is None:
            return None
        for other in blocked:
            # An equal cannot be evicted later, so it must not stand in the way of one that came first.
            if other.rank >= job.rank and place([share], other.client.demand, self._device) is None:
                return None
        return share

    def _claim(self, job: ScheduledJob, claims: list[Share], actions: list[Action]) -> Share | None:
        """Ask whom it takes to make room for ``job``; return what it will get, None if nobody can be asked.

        Holders already asked count as gone: their room is on its way.
        """
        staying = [holder for holder in self.holders if holder.state is _RUNNING]
        share = place([*_shares(staying), *claims], job.client.demand, self._device)
        if share is not None:
            return share
        lower = [holder for holder in staying if holder.rank > job.rank]
        if not lower:
            return None
        lower.sort(key=lambda holder: (holder.rank, holder.sequence), reverse=True)
        victims = self._victims(job, lower, staying, claims)
        if not victims:
            return None
        for victim in victims:
            victim.move(_YIELDING)
            actions.append(AskYield(victim.number, victim.token))
        rest = [holder for holder in staying if holder not in victims]
        return place([*_shares(rest), *claims], job.client.demand, self._device)

    def _victims(
        self, job: ScheduledJob, lower: list[ScheduledJob], staying: list[ScheduledJob], claims: list[Share]
    ) -> list[ScheduledJob]:
        """Choose jobs to evict among ``lower`` (least urgent first): one if enough, otherwise the fewest."""

        def is_enough(gone: list[ScheduledJob]) -> bool:
            rest = [*_shares([holder for holder in staying if holder not in gone]), *claims]
            return place(rest, job.client.demand, self._device) is not None

        for holder in lower:
            if is_enough([holder]):
                return [holder]
        if not is_enough(lower):
            return []  # a job that is not lower stands in the way; asking the others would help nobody
        victims = list(lower)
        for holder in reversed(lower):  # spare the most urgent first
            without = [victim for victim in victims if victim is not holder]
            if is_enough(without):
                victims = without
        return victims

    def _start(self, job: ScheduledJob, share: Share, actions: list[Action]) -> None:
        job.move(_RUNNING)
        job.client.started = True
        job.share = share
        self.holders.append(job)
        token = job.token = self._next_token()
        number = job.number
        actions += (
            Grant(number, self._number, share.hmx_units, share.hvx_units, share.start, share.end - share.start),
            Start(number, job.step, token),
        )


def _shares(jobs: list[ScheduledJob]) -> list[Share]:
    return [job.share for job in jobs if job.share is not None]
