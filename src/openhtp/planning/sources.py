"""Sources of requests on the virtual clock: they decide when a client asks, one request at a time.

Nothing is generated ahead, so an hour of arrivals needs no memory; randomness comes only from a source's seed.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Struct

from openhtp.hw.clocks import Clocks
from openhtp.planning.scenario import ClientSpec, Conversation, Pattern, RequestSource, Scenario
from openhtp.planning.switching import SwitchingBoard
from openhtp.planning.voting import Clockwork, PaceAt
from openhtp.sched.events import Event, Submitted
from openhtp.sched.timed import Pace
from openhtp.sched.virtual import Caller, VirtualLoop


class _Client:
    """A client's bounded queue, as its sources see it: requests that do not fit wait outside."""

    __slots__ = ("backlog", "deadline", "depth", "in_queue", "number", "timeout")

    def __init__(self, number: int, spec: ClientSpec) -> None:
        self.number = number
        self.depth = spec.depth
        self.deadline = spec.deadline_ns
        self.timeout = spec.timeout_ns
        self.in_queue = 0
        self.backlog: deque[tuple[_Running, int]] = deque()


class _Running:
    """One source under way. The loop calls ``fire`` and ``ask``; they are made once, as they are called often."""

    __slots__ = (
        "ask",
        "burst",
        "client",
        "closed",
        "every",
        "fire",
        "left",
        "pace_at",
        "random",
        "spec",
        "talk",
        "until",
        "work",
    )

    def __init__(
        self,
        spec: RequestSource,
        work: Pace,
        pace_at: PaceAt,
        client: _Client,
        until: int | None,
        talk: _Talk | None,
    ) -> None:
        self.spec = spec
        self.work = work
        self.pace_at = pace_at
        self.talk = talk
        self.client = client
        self.left = spec.count
        self.until = until
        self.closed = spec.pattern is Pattern.CLOSED
        self.burst = spec.burst
        self.every = spec.gap_ns
        self.random = random.Random(spec.seed) if spec.pattern is Pattern.POISSON else None
        self.fire: Caller
        self.ask: Caller

    def takes_part_at(self, t: int) -> bool:
        """Whether another request may be made at ``t``; counts it."""
        if self.until is not None and t >= self.until:
            return False
        if self.left is None:
            return True
        self.left -= 1
        return self.left >= 0

    def gap(self) -> int:
        """Time to the next request of an open pattern; 0 if there is none."""
        if self.random is None:
            return self.every
        return random_gap(self.random, self.every)


def random_gap(drawn: random.Random, mean_ns: int) -> int:
    """Time to the next request of a random pattern."""
    return max(1, round(drawn.expovariate(1.0) * mean_ns))


class _Talk:
    """The runs that a request of a language model consists of."""

    __slots__ = ("prompt_runs", "runs", "token_at", "token_work", "tokens")

    def __init__(self, talk: Conversation, token_work: Pace, token_at: PaceAt) -> None:
        self.prompt_runs = talk.prompt_runs
        self.runs = talk.runs
        self.tokens = talk.tokens
        self.token_work = token_work
        self.token_at = token_at


class PlannedRequest(Struct, eq=False, gc=False):
    """One request: its client, its source, and when it was made.

    Of a language model it is one run of a conversation, the ``run``-th, which began at ``began``.
    """

    client: int
    source: _Running
    t: int
    run: int = 0
    began: int = 0
    first_token: int = 0

    @property
    def reads_last(self) -> bool:
        """Whether this run gives the first token."""
        talk = self.source.talk
        return talk is not None and self.run == talk.prompt_runs - 1

    @property
    def writes_last(self) -> bool:
        """Whether it ends a conversation."""
        talk = self.source.talk
        return talk is not None and self.run == talk.runs - 1

    @property
    def tokens(self) -> int:
        """Tokens that the conversation writes."""
        return 0 if self.source.talk is None else self.source.talk.tokens


class Traffic:
    """All sources of a scenario, feeding one loop."""

    def __init__(
        self,
        scenario: Scenario,
        loop: VirtualLoop,
        boards: Mapping[int, SwitchingBoard] | None = None,
        clockwork: Clockwork | None = None,
    ) -> None:
        """``boards`` has the board of each client that is switched; ``clockwork`` is given if clients vote."""
        self._loop = loop
        self._clockwork = clockwork
        self._boards = boards or {}
        self._clients = [_Client(number, spec) for number, spec in enumerate(scenario.clients)]
        self._followers: dict[int, list[_Running]] = {}
        self._last_job = 0
        for spec in scenario.sources:
            asks = scenario.clients[spec.client]
            talk = None
            work = scenario.work_for(asks, spec.run_ns)
            pace_at = _priced(scenario, asks, spec, work)
            if asks.talk is not None:
                # Reading a prompt multiplies matrices, writing a token reads weights.
                work = scenario.work_for(asks, asks.talk.prompt_ns)
                pace_at = _scaled(scenario, asks, asks.talk.prompt_ns, lambda clocks: clocks.hmx)
                token_at = _scaled(scenario, asks, asks.talk.token_ns, lambda clocks: clocks.bus)
                talk = _Talk(asks.talk, scenario.work_for(asks, asks.talk.token_ns), token_at)
            client = self._clients[spec.client]
            self._add(_Running(spec, work, pace_at, client, scenario.ends_ns(spec), talk))

    def _add(self, source: _Running) -> None:
        spec = source.spec
        source.fire = partial(self._fire, source)
        source.ask = partial(self._ask, source)
        if spec.after is not None:
            self._followers.setdefault(spec.after, []).append(source)
        elif spec.pattern is Pattern.CLOSED:
            for _ in range(spec.in_flight):
                self._request_at(source, spec.start_ns)
        else:
            first = spec.start_ns + (source.gap() if source.random else 0)
            if source.takes_part_at(first):
                self._loop.call_at(first, source.fire)

    def _fire(self, source: _Running, now: int) -> Event | None:
        """An open source asks regardless of its earlier requests, and goes on."""
        gap = source.gap()
        if gap and source.takes_part_at(now + gap):
            self._loop.call_at(now + gap, source.fire)
        if source.burst > 1:
            for _ in range(source.burst - 1):
                self._loop.call_at(now, source.ask)
        return self._ask(source, now)

    def _request_at(self, source: _Running, t: int) -> None:
        if source.takes_part_at(t):
            self._loop.call_at(t, source.ask)

    def _ask(self, source: _Running, now: int) -> Event | None:
        client = source.client
        if client.in_queue >= client.depth:
            client.backlog.append((source, now))
            return None
        return self._submit(source, now, now)

    def _submit(self, source: _Running, asked: int, now: int) -> Event:
        client = source.client
        client.in_queue += 1
        job = self._last_job = self._last_job + 1
        work = source.work
        if self._clockwork is not None:
            work = self._clockwork.asked(client.number, job, source.pace_at, now)
        self._loop.expect(job, work, PlannedRequest(client.number, source, asked, 0, asked))
        if self._boards and client.number in self._boards:
            self._boards[client.number].asked(job, client.number, now)
        timeout = None if client.timeout is None else asked + client.timeout
        deadline = None if client.deadline is None else asked + client.deadline
        return Submitted(now, job, client.number, 1, timeout, deadline)

    def _go_on(self, before: PlannedRequest, now: int) -> Event:
        """The next run of a conversation, which keeps its place in the queue."""
        source, talk = before.source, before.source.talk
        assert talk is not None
        job = self._last_job = self._last_job + 1
        number = before.run + 1
        reads, client = number < talk.prompt_runs, source.client
        work = source.work if reads else talk.token_work
        if self._clockwork is not None:
            pace_at = source.pace_at if reads else talk.token_at
            work = self._clockwork.asked(client.number, job, pace_at, now)
        self._loop.expect(
            job, work, PlannedRequest(client.number, source, now, number, before.began, before.first_token)
        )
        timeout = None if client.timeout is None else now + client.timeout
        deadline = None if client.deadline is None else now + client.deadline
        return Submitted(now, job, client.number, 1, timeout, deadline)

    def finished(self, request: PlannedRequest, now: int) -> None:
        """A request has ended: there is room in the queue, a closed loop goes on, and followers begin."""
        source = request.source
        client = source.client
        if source.talk is not None and not request.writes_last:
            self._loop.call_at(now, partial(self._go_on, request))
            return
        client.in_queue -= 1
        if client.backlog:
            waiting, asked = client.backlog.popleft()
            self._loop.call_at(now, partial(self._submit, waiting, asked))
        if source.closed:
            self._request_at(source, now + source.every)
        if self._followers:
            for follower in self._followers.get(client.number, ()):
                self._request_at(follower, now + follower.spec.gap_ns)


def _priced(scenario: Scenario, client: ClientSpec, source: RequestSource, work: Pace) -> PaceAt:
    """How a run of a model goes at the clocks that votes can lead to; a given time is the same at all clocks."""
    known = {clocks: scenario.work_for(client, time_ns) for clocks, time_ns in source.times}
    return lambda clocks: known.get(clocks, work)


def _scaled(scenario: Scenario, client: ClientSpec, run_ns: int, speed: Callable[[Clocks], float]) -> PaceAt:
    """How a run goes whose time depends on one unit."""

    @functools.cache
    def pace_at(clocks: Clocks) -> Pace:
        return scenario.work_for(client, max(1, round(run_ns / speed(clocks))))

    return pace_at
