"""Search for priorities, queue depths and a policy under which all deadlines hold.

Candidates go from the least change to the most; each is judged by running its schedule. If none holds without
starving somebody, the scenario is returned as it was given together with the reasons, in words: proofs that no
setting can hold, the worst runs, and what would help.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from openhtp.core.enumerations import Priority
from openhtp.core.units import number_in_words
from openhtp.planning.load import CoreOverload, loads_of, overload, starved
from openhtp.planning.remedies import OnChip, remedies
from openhtp.planning.scenario import Pattern, Scenario
from openhtp.planning.simulate import PlanRun, simulate
from openhtp.records.phases import Phase, Phases
from openhtp.sched.policy import STRICT, EarliestDeadline, Fair, Policy

# A trial runs at most about this many requests; the winner is run in full.
TRIAL_REQUESTS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSetting:
    """One setting of everything that the search may change."""

    policy: Policy
    priorities: tuple[Priority, ...]
    depths: tuple[int, ...]

    def applied_to(self, scenario: Scenario) -> Scenario:
        """The scenario with this setting."""
        return scenario.with_choice(policy=self.policy, priorities=self.priorities, depths=self.depths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What the search found. ``holds``: in ``run``, of ``scenario``, all deadlines are met and nobody starves."""

    holds: bool
    scenario: Scenario
    run: PlanRun
    tried: int
    words: tuple[str, ...]


def optimize(scenario: Scenario, *, on_chip: OnChip | None = None) -> Advice:
    """Find a setting under which all deadlines hold and nobody starves, or say why there is none, and what to do.

    ``on_chip`` gives the scenario on another SoC; with it, an overloaded one is told which chip would do.
    """
    if all(client.deadline_ns is None for client in scenario.clients):
        run = simulate(scenario)
        return Advice(
            holds=True, scenario=scenario, run=run, tried=1, words=("no client has a deadline; nothing to do",)
        )
    trial = _shortened(scenario)
    hopeless = proofs(trial)
    too_much = overload(scenario)
    search = _SettingSearch(scenario, trial, most=_FEW if hopeless or too_much else None)
    fitting = search.first_that_fits()
    if fitting is not None and too_much is None:
        words = _changes(scenario, fitting.scenario)
        return Advice(holds=True, scenario=fitting.scenario, run=fitting, tried=search.tried, words=words)
    reasons = _reasons(scenario, search, hopeless, too_much)
    helpful = remedies(trial, _has_a_fitting_setting, None if on_chip is None else _shortly(on_chip))
    # As it was given: a setting that only moves the misses to another client is no proposal.
    return Advice(
        holds=False, scenario=scenario, run=simulate(scenario), tried=search.tried, words=(*reasons, *helpful)
    )


_FEW = 6
"""Settings that are tried for the least bad one where nothing can hold."""


class _SettingSearch:
    """Tries settings, each on a short trial first, and remembers the least bad one."""

    def __init__(self, scenario: Scenario, trial: Scenario, most: int | None = None) -> None:
        self._scenario = scenario
        self._trial = trial
        self._most = most
        self.tried = 0
        self.least_bad: PlanRun | None = None
        # A run that holds all deadlines, but under which somebody starves.
        self.starving: PlanRun | None = None

    def first_that_fits(self) -> PlanRun | None:
        """The run of the first setting that holds all deadlines and starves nobody; None if there is none."""
        best: tuple[float, int, int] | None = None
        seen: set[PlanSetting] = set()
        for choice in _choices(self._trial):
            if choice in seen:
                continue
            if self._most is not None and self.tried >= self._most:
                return None
            seen.add(choice)
            self.tried += 1
            run = simulate(choice.applied_to(self._trial))
            if not run.missed and self._trial is not self._scenario:
                run = simulate(choice.applied_to(self._scenario))
            if not run.missed:
                if not starved(run):
                    return run
                self.starving = self.starving or run
            score = _score(run)
            if best is None or score < best:
                best, self.least_bad = score, run
        return None


def _has_a_fitting_setting(scenario: Scenario) -> bool:
    if all(client.deadline_ns is None for client in scenario.clients):
        return not starved(simulate(scenario))
    return _SettingSearch(scenario, scenario, most=_TRIED_FOR_A_REMEDY).first_that_fits() is not None


_TRIED_FOR_A_REMEDY = 12


def _shortly(on_chip: OnChip) -> OnChip:
    return lambda soc: _shortened(on_chip(soc))


def _score(run: PlanRun) -> tuple[float, int, int]:
    """The largest share of deadlines that a client misses, then all misses, then how late the worst runs are."""
    pairs = list(zip(run.scenario.clients, run.clients, strict=True))
    shares = (figures.missed / max(1, len(figures.latencies_ns) + figures.not_done) for _, figures in pairs)
    late = (figures.worst_ns - client.deadline_ns for client, figures in pairs if client.deadline_ns is not None)
    return max(shares), run.missed, sum(max(0, each) for each in late)


def _shortened(scenario: Scenario) -> Scenario:
    """The same scenario over a shorter time, if it is long; bounded sources stay as they are."""
    if scenario.duration_ns is None:
        return scenario
    open_patterns = (Pattern.EVERY, Pattern.POISSON, Pattern.BURST)
    rate = sum(s.burst / s.gap_ns for s in scenario.sources if s.gap_ns and s.pattern in open_patterns)
    rate += sum(1 / max(1, s.run_ns + s.gap_ns) for s in scenario.sources if s.pattern is Pattern.CLOSED)
    if rate * scenario.duration_ns <= TRIAL_REQUESTS:
        return scenario
    return replace(scenario, duration_ns=round(TRIAL_REQUESTS / rate))


def _choices(scenario: Scenario) -> Iterator[PlanSetting]:
    """From no change at all to everything changed."""
    as_given = tuple(client.priority for client in scenario.clients)
    depths = tuple(client.depth for client in scenario.clients)
    shallow = tuple(1 if client.deadline_ns is None else client.depth for client in scenario.clients)
    ones = tuple(1 for _ in scenario.clients)
    by_deadline = _by_deadline(scenario)
    yield PlanSetting(policy=scenario.policy, priorities=as_given, depths=depths)
    for depth in (depths, shallow, ones):
        for policy in (STRICT, EarliestDeadline()):
            for order in (as_given, by_deadline):
                yield PlanSetting(policy=policy, priorities=order, depths=depth)
    built = _bottom_up(scenario)
    if built is not None:
        yield PlanSetting(policy=STRICT, priorities=built, depths=depths)
    shortest = min(client.deadline_ns for client in scenario.clients if client.deadline_ns is not None)
    for part in (8, 4, 2, 1):
        yield PlanSetting(policy=Fair(max(1, shortest // part)), priorities=by_deadline, depths=depths)
    for first in range(len(as_given)):
        for second in range(first + 1, len(as_given)):
            swapped = list(by_deadline)
            swapped[first], swapped[second] = swapped[second], swapped[first]
            yield PlanSetting(policy=STRICT, priorities=tuple(swapped), depths=depths)


def _by_deadline(scenario: Scenario) -> tuple[Priority, ...]:
    """The shorter the deadline the higher the level; clients without one get the lowest."""
    deadlines = sorted({client.deadline_ns for client in scenario.clients if client.deadline_ns is not None})
    # The lowest levels that suffice: on devices the higher ones are not open to everyone.
    levels = sorted(Priority)[1 : 1 + len(deadlines)][::-1]
    level_of = {deadline: levels[min(i, len(levels) - 1)] for i, deadline in enumerate(deadlines)}
    return tuple(
        Priority.LOW if client.deadline_ns is None else level_of[client.deadline_ns] for client in scenario.clients
    )


def _bottom_up(scenario: Scenario) -> tuple[Priority, ...] | None:
    """Give the lowest level to a client that holds its deadline there, then the next, and so on.

    If an order of priorities exists for which every client's schedule holds, this finds one (as far as the
    simulated time can tell), with few runs.
    """
    levels = sorted(Priority)
    clients = scenario.clients
    chosen = [Priority.CRITICAL_PLUS] * len(clients)
    open_ = sorted(range(len(clients)), key=lambda n: -(clients[n].deadline_ns or 1 << 62))
    depths = tuple(client.depth for client in clients)
    for level in levels[:-1]:
        for number in open_:
            trial = list(chosen)
            trial[number] = level
            run = simulate(scenario.with_choice(policy=STRICT, priorities=tuple(trial), depths=depths))
            if not run.clients[number].missed:
                chosen = trial
                open_.remove(number)
                break
        else:
            return None
        if not open_:
            break
    return tuple(chosen)


def _changes(before: Scenario, after: Scenario) -> tuple[str, ...]:
    """The settings to change, in words."""
    words: list[str] = []
    if before.policy != after.policy:
        window = f", window {after.in_unit(after.policy.window_ns)}" if isinstance(after.policy, Fair) else ""
        words.append(f"use the {after.policy.name} policy{window}")
    for old, new in zip(before.clients, after.clients, strict=True):
        if old.priority != new.priority:
            words.append(f"{old.name}: priority {new.priority.name.lower()} (was {old.priority.name.lower()})")
        if old.depth != new.depth:
            words.append(f"{old.name}: queue depth {new.depth} (was {old.depth})")
    return tuple(words) or ("all deadlines hold as it is",)


def _reasons(
    scenario: Scenario, search: _SettingSearch, hopeless: dict[int, str], too_much: CoreOverload | None
) -> list[str]:
    """Why nothing fits: proofs first, then the clients that starve or miss deadlines in the least bad setting."""
    words = [] if too_much is None else [f"nothing fits: {too_much}"]
    words += hopeless.values()
    if too_much is None and search.starving is not None:
        words += [_hunger(search.starving, number) for number in starved(search.starving)]
        return words
    run = search.least_bad
    if run is None:
        return words
    loads = loads_of(scenario)
    for number, figures in enumerate(run.clients):
        if figures.missed and number not in hopeless:
            share = f" (it asks for {loads[number]:.0%} of the time)" if loads[number] else ""
            words.append(
                f"{scenario.clients[number].name} misses {figures.missed} deadlines in the best of {search.tried}"
                f" settings{share}: " + worst_run(run, number)
            )
    return words


def _hunger(run: PlanRun, number: int) -> str:
    waited = _time_in_words(run.scenario, run.clients[number].waits_max_ns)
    return f"all deadlines hold only if {run.scenario.clients[number].name} starves: it waits for {waited}"


def proofs(scenario: Scenario) -> dict[int, str]:
    """Clients that can meet their deadlines under no priorities, depths or policy, each with the reason."""
    reasons: dict[int, str] = {}
    for number, client in enumerate(scenario.clients):
        if client.deadline_ns is None:
            continue
        runs = [source.run_ns for source in scenario.sources if source.client == number]
        longest = max(runs, default=0)
        if longest > client.deadline_ns:
            reasons[number] = (
                f"{client.name} cannot: one run takes {_time_in_words(scenario, longest)}, "
                f"longer than its deadline of {_time_in_words(scenario, client.deadline_ns)}"
            )
            continue
        missed = _alone_at_the_top(scenario, number)
        if missed is not None:
            reasons[number] = missed
    return reasons


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
    """Say what a client's slowest run waited for."""
    scenario = run.scenario
    figures = run.clients[number]
    if figures.worst_job is None:
        return f"no run of {scenario.clients[number].name} ended"
    ended = figures.worst_ended_ns
    asked = ended - figures.worst_ns
    phases = Phases(asked, ended)
    simulate(scenario, phases=phases)
    running = [i for i in phases.intervals if i.phase is Phase.RUNNING]
    mine = sorted((i.start_ns, i.end_ns) for i in running if i.job == figures.worst_job)
    ran = sum(end - start for start, end in mine)
    # Whatever it did not run is a wait, from the moment on in which it was asked for: it may stand before a full
    # queue, where the scheduler does not know of it.
    starts, ends = [asked, *(end for _, end in mine)], [*(start for start, _ in mine), ended]
    waits = list(zip(starts, ends, strict=True))
    blockers: dict[int, int] = {}
    for other in running:
        if other.job == figures.worst_job or scenario.clients[other.client].core != scenario.clients[number].core:
            continue
        overlap = sum(max(0, min(other.end_ns, end) - max(other.start_ns, start)) for start, end in waits)
        if overlap > 0:
            blockers[other.client] = blockers.get(other.client, 0) + overlap
    name = scenario.clients[number].name
    took = _time_in_words(scenario, figures.worst_ns)
    words = f"the slowest run of {name} asked at {_time_in_words(scenario, asked)} and took {took}: "
    words += f"it ran for {_time_in_words(scenario, ran)}"
    if not blockers:
        return words
    listed = sorted(blockers.items(), key=lambda item: -item[1])
    return (
        words
        + " and waited while "
        + ", ".join(
            f"{scenario.clients[other].name if other != number else 'its own earlier runs'} "
            f"ran for {_time_in_words(scenario, time)}"
            for other, time in listed[:4]
        )
    )


def _time_in_words(scenario: Scenario, time_ns: float) -> str:
    return f"{number_in_words(scenario.in_unit(time_ns))} {scenario.unit}"
