"""How fast the planner runs, beside SimPy, the general-purpose simulator that one would otherwise reach for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from openhtp.bench.quiet import BenchProgress, Measurement, QuietGate, QuietResult, median
from openhtp.core.units import MS
from openhtp.planning.parsing import parse_scenario
from openhtp.planning.scenario import Pattern, Scenario
from openhtp.planning.simulate import simulate

_SECOND = 1000 * MS
# Three cameras and a language model that is pre-empted by nearly every frame.
_SCENARIO = """
unit: ms
device: {soc: SM8650}
clients:
  - {name: front camera, priority: high, vtcm_mb: 8, deadline: 33, run: 5}
  - {name: rear camera, priority: high, vtcm_mb: 8, deadline: 33, run: 6}
  - {name: cabin camera, priority: normal, vtcm_mb: 8, deadline: 66, run: 7}
  - {name: llm, priority: low, vtcm_mb: 8, run: 28, steps: 200}
events:
  - {client: front camera, every: 33}
  - {client: rear camera, every: 33, from: 11}
  - {client: cabin camera, every: 66, from: 22}
  - {client: llm, closed: 1}
duration: 60000
"""


class PlanRates(QuietResult, kw_only=True):
    """Rates per second of one core's processor time, medians. A run is one execution of one client."""

    scenario_seconds: float
    events: int = 0
    runs: int = 0
    events_per_second: float = 0.0
    runs_per_second: float = 0.0
    simpy_runs_per_second: float | None = None

    @property
    def ratio_to_simpy(self) -> float | None:
        """How many times faster than SimPy."""
        return self.runs_per_second / self.simpy_runs_per_second if self.simpy_runs_per_second else None


def run(*, rounds: int = 15, seconds: float = 60.0) -> Iterator[BenchProgress | PlanRates]:
    """Measure in turns; yields progress, and the result last."""
    scenario = replace(parse_scenario(_SCENARIO), duration_ns=round(seconds * _SECOND))
    result = PlanRates(scenario_seconds=seconds)
    first = simulate(scenario)
    result.events = first.events
    result.runs = sum(len(client.latencies_ns) for client in first.clients)
    peer = _simpy(scenario)
    quiet = QuietGate()
    ours: list[Measurement[float]] = []
    theirs: list[Measurement[float]] = []
    for number in range(rounds):
        yield BenchProgress("planning", number, rounds)
        ours.append(quiet.measure(lambda: _cpu_seconds(lambda: simulate(scenario))))
        if peer is not None:
            theirs.append(quiet.measure(lambda: _cpu_seconds(peer) / peer.finished))
    took = median(ours)
    result.events_per_second = result.events / took
    result.runs_per_second = result.runs / took
    result.simpy_runs_per_second = 1 / median(theirs) if theirs else None
    quiet.tell(result)
    yield result


def _cpu_seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


class _SimpyModel:
    """The same traffic on one pre-emptive resource: no VTCM, no eviction time, no figures; so less work."""

    def __init__(self, simpy: Any, scenario: Scenario) -> None:
        self._simpy = simpy
        self._scenario = scenario
        self.finished = 0

    def __call__(self) -> None:
        simpy = self._simpy
        env = simpy.Environment()
        core = simpy.PreemptiveResource(env, capacity=1)
        self.finished = 0

        def job(priority: int, left: int) -> Iterator[Any]:
            while left:
                with core.request(priority=priority) as request:
                    yield request
                    begin = env.now
                    try:
                        yield env.timeout(left)
                        left = 0
                    except simpy.Interrupt:
                        left -= env.now - begin
            self.finished += 1

        def source(priority: int, start: int, gap: int, run_ns: int, *, closed: bool) -> Iterator[Any]:
            yield env.timeout(start)
            while True:
                request = env.process(job(priority, run_ns))
                yield request if closed else env.timeout(gap)

        for spec in self._scenario.sources:
            client = self._scenario.clients[spec.client]
            work = self._scenario.work_for(client, spec.run_ns)
            closed = spec.pattern is Pattern.CLOSED
            env.process(source(-int(client.priority), spec.start_ns, spec.gap_ns, work.total_ns, closed=closed))
        env.run(until=self._scenario.duration_ns)


def _simpy(scenario: Scenario) -> _SimpyModel | None:
    try:
        import simpy
    except ImportError:
        return None
    return _SimpyModel(simpy, scenario)
