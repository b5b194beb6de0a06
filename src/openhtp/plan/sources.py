"""Sources of requests on the virtual clock: they decide when a client asks, one request at a time.

Nothing is generated ahead, so an hour of arrivals needs no memory; randomness comes only from a source's seed.
"""

from __future__ import annotations

import random
from collections import deque
from functools import partial

from msgspec import Struct

from openhtp.plan.scenario import ClientSpec, Pattern, Scenario, Source
from openhtp.sched.events import Event, Submitted
from openhtp.sched.virtual import VirtualLoop, Work


class _Client:
    """A client's bounded queue, as seen by those who ask: what does not fit waits outside."""

    __slots__ = ("backlog", "deadline", "depth", "in_queue", "timeout")

    def __init__(self, spec: ClientSpec) -> None:
        self.depth = spec.depth
        self.deadline = spec.deadline_ns
        self.timeout = spec.timeout_ns
        self.in_queue = 0
        self.backlog: deque[tuple[_Running, int]] = deque()


class _Running:
    """One source under way."""

    __slots__ = ("left", "random", "spec", "until", "work")

    def __init__(self, spec: Source, work: Work, until: int | None) -> None:
        self.spec = spec
        self.work = work
        self.left = spec.count
        self.until = until
        self.random = random.Random(spec.seed)

    def takes_part_at(self, t: int) -> bool:
        """Whether another request may be made at ``t``; counts it."""
        if self.until is not None and t >= self.until:
            return False
        if self.left is None:
            return True
        self.left -= 1
        return self.left >= 0

    def gap(self) -> int:
        """Time to the next request of an open pattern."""
        if self.spec.pattern is Pattern.POISSON:
            return max(1, round(self.random.expovariate(1.0) * self.spec.gap_ns))
        return self.spec.gap_ns


class Asked(Struct, eq=False, gc=False):
    """One request: who asked, through which source, and when."""

    client: int
    source: _Running
    t: int


class Traffic:
    """All sources of a scenario, feeding one loop."""

    def __init__(self, scenario: Scenario, loop: VirtualLoop) -> None:
        self._loop = loop
        self._clients = [_Client(spec) for spec in scenario.clients]
        self._followers: dict[int, list[_Running]] = {}
        self._last_job = 0
        for spec in scenario.sources:
            ends = [end for end in (spec.until_ns, scenario.duration_ns) if end is not None]
            work = scenario.work_for(scenario.clients[spec.client], spec.run_ns)
            self._add(_Running(spec, work, min(ends, default=None)))

    def _add(self, source: _Running) -> None:
        spec = source.spec
        if spec.after is not None:
            self._followers.setdefault(spec.after, []).append(source)
            return
        if spec.pattern is Pattern.CLOSED:
            for _ in range(spec.in_flight):
                self._request_at(source, spec.start_ns)
            return
        self._open_at(source, spec.start_ns + (source.gap() if spec.pattern is Pattern.POISSON else 0))

    def _open_at(self, source: _Running, t: int) -> None:
        """An open source asks at ``t`` whatever has become of its earlier requests, and then goes on."""
        if source.takes_part_at(t):
            self._loop.call_at(t, partial(self._fire, source))

    def _fire(self, source: _Running, now: int) -> Event | None:
        gap = source.gap()
        if gap:
            self._open_at(source, now + gap)
        for _ in range(source.spec.burst - 1):
            self._loop.call_at(now, partial(self._ask, source))
        return self._ask(source, now)

    def _request_at(self, source: _Running, t: int) -> None:
        if source.takes_part_at(t):
            self._loop.call_at(t, partial(self._ask, source))

    def _ask(self, source: _Running, now: int) -> Event | None:
        client = self._clients[source.spec.client]
        if client.in_queue >= client.depth:
            client.backlog.append((source, now))
            return None
        return self._submit(source, client, now, now)

    def _submit(self, source: _Running, client: _Client, asked: int, now: int) -> Event:
        client.in_queue += 1
        job = self._last_job = self._last_job + 1
        number = source.spec.client
        self._loop.expect(job, source.work, Asked(number, source, asked))
        return Submitted(
            t=now,
            job=job,
            client=number,
            timeout_at=None if client.timeout is None else asked + client.timeout,
            deadline_at=None if client.deadline is None else asked + client.deadline,
        )

    def finished(self, request: Asked, now: int) -> None:
        """A request has ended: room in the queue, the next of a closed loop, and whoever follows."""
        source = request.source
        spec = source.spec
        client = self._clients[spec.client]
        client.in_queue -= 1
        if client.backlog:
            waiting, asked = client.backlog.popleft()
            self._loop.call_at(now, partial(self._submit, waiting, client, asked))
        if spec.pattern is Pattern.CLOSED:
            self._request_at(source, now + spec.gap_ns)
        for follower in self._followers.get(spec.client, ()):
            self._request_at(follower, now + follower.spec.gap_ns)
