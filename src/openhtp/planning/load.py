"""How much of the time the clients of a scenario ask for, and which clients starve."""

from __future__ import annotations

from dataclasses import dataclass, replace

from openhtp.planning.scenario import Pattern, RequestSource, Scenario
from openhtp.planning.simulate import PlanRun
from openhtp.sched.events import ClientKind

_REPEATED = (Pattern.EVERY, Pattern.POISSON, Pattern.BURST)

STARVED_RUNS = 10
"""A client starves if it waits for half of the whole time, and at least so many times as long as it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreOverload:
    """A core whose graphs ask for more than all of its time, with the ``shares`` of its clients."""

    core: int
    shares: dict[str, float]

    @property
    def total(self) -> float:
        """The share that all of them ask for together."""
        return sum(self.shares.values())

    def __str__(self) -> str:
        each = ", ".join(f"{name} {share:.0%}" for name, share in self.shares.items())
        return (
            f"graphs never run side by side, and these ask for {self.total:.0%} of the time, {self.total - 1:.0%} "
            f"more than there is ({each})"
        )


def loads_of(scenario: Scenario) -> list[float]:
    """The share of all time that each client asks for. A closed loop takes what is left, which counts as 0."""
    horizon = _horizon_ns(scenario)
    amounts: dict[int, float] = {}
    loads = [0.0] * len(scenario.clients)
    for client in _leaders_first(scenario):
        amounts[client] = 0.0
        for source in scenario.sources:
            if source.client == client:
                amount = _amount(scenario, source, amounts)
                amounts[client] += amount
                loads[client] += amount * source.run_ns / horizon if horizon else 0.0
    return loads


def _leaders_first(scenario: Scenario) -> list[int]:
    """Clients such that each comes after those that it follows; parsing has refused circles."""
    follows = {number: [s.after for s in scenario.sources if s.client == number] for number in _numbers(scenario)}
    ordered: list[int] = []

    def visit(client: int) -> None:
        if client in ordered:
            return
        for leader in follows[client]:
            if leader is not None:
                visit(leader)
        ordered.append(client)

    for number in _numbers(scenario):
        visit(number)
    return ordered


def _numbers(scenario: Scenario) -> range:
    return range(len(scenario.clients))


def _horizon_ns(scenario: Scenario) -> int:
    if scenario.duration_ns is not None:
        return scenario.duration_ns
    return max((_end_ns(scenario, source) for source in scenario.sources), default=0)


def _end_ns(scenario: Scenario, source: RequestSource) -> int:
    """When a source asks for the last time at the latest."""
    ends = [end for end in (scenario.duration_ns, source.until_ns) if end is not None]
    if source.count is not None and source.pattern in _REPEATED:
        ends.append(source.start_ns + source.count * source.gap_ns)
    return min(ends, default=source.start_ns)


def _amount(scenario: Scenario, source: RequestSource, amounts: dict[int, float]) -> float:
    """How many requests a source makes."""
    if source.pattern is Pattern.CLOSED:
        return 0.0
    most = float("inf") if source.count is None else float(source.count)
    if source.after is not None:
        return min(most, amounts.get(source.after, 0.0))
    if source.pattern not in _REPEATED or not source.gap_ns:
        return float(source.burst)
    return min(most, max(0, _end_ns(scenario, source) - source.start_ns) / source.gap_ns) * source.burst


def overload(scenario: Scenario) -> CoreOverload | None:
    """The first core whose graphs ask for more than all of its time; None if there is none."""
    if scenario.device.parallel_graphs:
        return None
    loads = loads_of(scenario)
    for core in range(scenario.device.cores):
        shares = {
            client.name: loads[number]
            for number, client in enumerate(scenario.clients)
            if client.kind is ClientKind.GRAPH and client.core == core and loads[number]
        }
        if sum(shares.values()) > 1:
            return CoreOverload(core=core, shares=shares)
    return None


def starved(run: PlanRun) -> list[int]:
    """Clients that asked and waited for most of the time, though their runs are short."""
    run_ns = {source.client: source.run_ns for source in run.scenario.sources}
    return [
        number
        for number, figures in enumerate(run.clients)
        if figures.waits_max_ns > max(run.end_ns / 2, STARVED_RUNS * run_ns.get(number, 0))
    ]


def without(scenario: Scenario, dropped: set[int]) -> Scenario:
    """The scenario without these clients, and without what follows them."""
    gone = set(dropped)
    while True:
        followers = {source.client for source in scenario.sources if source.after in gone}
        if followers <= gone:
            break
        gone |= followers
    kept = [number for number in _numbers(scenario) if number not in gone]
    renumbered = {old: new for new, old in enumerate(kept)}
    switching = tuple(
        replace(
            switched,
            graphs=tuple(renumbered[graph] for graph in switched.graphs if graph in renumbered),
            retained=tuple(renumbered[graph] for graph in switched.retained if graph in renumbered),
        )
        for switched in scenario.switching
    )
    sources = tuple(
        replace(
            source,
            client=renumbered[source.client],
            after=None if source.after is None else renumbered[source.after],
        )
        for source in scenario.sources
        if source.client in renumbered
    )
    return replace(
        scenario,
        clients=tuple(scenario.clients[number] for number in kept),
        sources=sources,
        switching=tuple(switched for switched in switching if switched.graphs),
    )


def stretched(scenario: Scenario, factor: float) -> Scenario:
    """The scenario whose repeated requests come ``factor`` times less often."""
    sources = tuple(
        replace(source, gap_ns=round(source.gap_ns * factor)) if source.pattern in _REPEATED else source
        for source in scenario.sources
    )
    return replace(scenario, sources=sources)
