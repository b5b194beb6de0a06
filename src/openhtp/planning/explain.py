"""Why a deadline does not hold, in words, taken from the schedule itself."""

from __future__ import annotations

from openhtp.core.priority import Priority
from openhtp.planning.scenario import Pattern, Scenario
from openhtp.planning.simulate import PlanRun, simulate
from openhtp.records.phases import Phase, Phases
from openhtp.sched.events import ClientKind
from openhtp.sched.policy import STRICT


def proofs(scenario: Scenario) -> dict[int, str]:
    """Clients that can meet their deadlines under no priorities, depths or policy, each with the reason."""
    found: dict[int, str] = {}
    for number, client in enumerate(scenario.clients):
        if client.deadline_ns is None:
            continue
        runs = [source.run_ns for source in scenario.sources if source.client == number]
        longest = max(runs, default=0)
        if longest > client.deadline_ns:
            found[number] = (
                f"{client.name} cannot: one run takes {_time(scenario, longest)}, "
                f"longer than its deadline of {_time(scenario, client.deadline_ns)}"
            )
            continue
        missed = _alone_at_the_top(scenario, number)
        if missed is not None:
            found[number] = missed
    return found


def overload(scenario: Scenario) -> str | None:
    """Say so if graphs with deadlines ask for more than all of a core's time; they never run together."""
    if scenario.device.parallel_graphs:
        return None
    for core in range(scenario.device.cores):
        parts: dict[str, float] = {}
        for source in scenario.sources:
            client = scenario.clients[source.client]
            load = load_of(scenario, source.client)
            graph = client.kind is ClientKind.GRAPH and client.core == core
            if graph and client.deadline_ns is not None and load:
                parts[client.name] = load
        total = sum(parts.values())
        if total > 1:
            each = ", ".join(f"{name} {load:.0%}" for name, load in parts.items())
            return (
                f"graphs never run side by side, and those with deadlines need {total:.0%} of the time ({each}): "
                "some of them must miss, whatever the order"
            )
    return None


def load_of(scenario: Scenario, client: int) -> float:
    """Share of time that a client's periodic and random sources ask for."""
    return sum(
        source.run_ns * source.burst / source.gap_ns
        for source in scenario.sources
        if source.client == client
        and source.gap_ns
        and source.pattern in (Pattern.EVERY, Pattern.POISSON, Pattern.BURST)
    )


def _alone_at_the_top(scenario: Scenario, number: int) -> str | None:
    """Try the best case of one client: the highest priority, everyone else at the lowest."""
    client = scenario.clients[number]
    others = tuple(Priority.LOW for _ in scenario.clients)
    priorities = (*others[:number], Priority.CRITICAL_PLUS, *others[number + 1 :])
    depths = tuple(each.depth for each in scenario.clients)
    best = scenario.with_choice(policy=STRICT, priorities=priorities, depths=depths)
    run = simulate(best)
    figures = run.clients[number]
    if not figures.missed:
        return None
    return (
        f"{client.name} cannot: even with the highest priority and all others at the lowest it misses "
        f"{figures.missed} of {len(figures.latencies_ns) + figures.not_done} deadlines; " + worst_run(run, number)
    )


def worst_run(run: PlanRun, number: int) -> str:
    """What a client's slowest run waited for."""
    scenario = run.scenario
    figures = run.clients[number]
    if figures.worst_job is None:
        return f"no run of {scenario.clients[number].name} ended"
    ended = figures.worst_ended_ns
    asked = ended - figures.worst_ns
    phases = Phases(asked, ended)
    simulate(scenario, phases=phases)
    mine = [i for i in phases.intervals if i.job == figures.worst_job]
    waits = [i for i in mine if i.phase is not Phase.RUNNING] or []
    ran = sum(i.end_ns - i.start_ns for i in mine if i.phase is Phase.RUNNING)
    blockers: dict[int, int] = {}
    for wait in waits:
        for other in phases.intervals:
            if other.phase is not Phase.RUNNING or other.job == figures.worst_job:
                continue
            overlap = min(other.end_ns, wait.end_ns) - max(other.start_ns, wait.start_ns)
            if overlap > 0 and scenario.clients[other.client].core == scenario.clients[number].core:
                blockers[other.client] = blockers.get(other.client, 0) + overlap
    name = scenario.clients[number].name
    took = _time(scenario, figures.worst_ns)
    words = f"the slowest run of {name} asked at {_time(scenario, asked)} and took {took}: "
    words += f"it ran for {_time(scenario, ran)}"
    if not blockers:
        return words
    listed = sorted(blockers.items(), key=lambda item: -item[1])
    return (
        words
        + " and waited while "
        + ", ".join(
            f"{scenario.clients[other].name if other != number else 'its own earlier run'} "
            f"ran for {_time(scenario, time)}"
            for other, time in listed[:4]
        )
    )


def _time(scenario: Scenario, time_ns: float) -> str:
    value = scenario.in_unit(time_ns)
    return f"{value:g} {scenario.unit}"
