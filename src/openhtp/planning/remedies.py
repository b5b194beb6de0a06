"""What would make a scenario fit if no setting does: drop a client, ask less often, take another chip.

Whatever is proposed was tried: with it, some setting holds all deadlines and starves nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from openhtp.core.errors import QnnError
from openhtp.core.units import number_in_words
from openhtp.hw.catalog import catalog, find_soc
from openhtp.planning.load import CoreOverload, loads_of, overload, stretched, without
from openhtp.planning.scenario import Pattern, Scenario

Holds = Callable[[Scenario], bool]
"""Whether a scenario has a setting that holds."""
OnChip = Callable[[str], Scenario]
"""The same scenario with its models timed on another SoC."""

_SLACKS = (1.0, 1.05, 1.15, 1.3, 1.6)
"""How much more than the bare load the periods are stretched until a setting holds."""


def remedies(scenario: Scenario, holds: Holds, on_chip: OnChip | None) -> Iterator[str]:
    """What would help, in words: the least that has to be dropped, how much less often, which chip."""
    too_much = overload(scenario)
    dropped = what_to_drop(scenario, holds)
    if dropped:
        yield f"without {' and '.join(dropped)} all deadlines hold"
    if too_much is None:
        return
    slower = _less_often(scenario, too_much, holds)
    if slower is not None:
        yield slower
    yield _which_chip(scenario, too_much, holds, on_chip)


def what_to_drop(scenario: Scenario, holds: Holds) -> tuple[str, ...]:
    """Names of the fewest clients without which all deadlines hold; the least urgent ones if there is a choice."""
    loads = loads_of(scenario)
    clients = scenario.clients
    order = sorted(
        range(len(clients)),
        key=lambda n: (clients[n].deadline_ns is not None, clients[n].priority, -loads[n]),
    )
    for number in order:
        if len(clients) > 1 and _holds_without(scenario, {number}, holds):
            return (clients[number].name,)
    for count in range(2, len(clients)):
        if _holds_without(scenario, set(order[:count]), holds):
            return tuple(clients[number].name for number in sorted(order[:count]))
    return ()


def _holds_without(scenario: Scenario, numbers: set[int], holds: Holds) -> bool:
    rest = without(scenario, numbers)
    return bool(rest.clients) and overload(rest) is None and holds(rest)


def _less_often(scenario: Scenario, too_much: CoreOverload, holds: Holds) -> str | None:
    for slack in _SLACKS:
        factor = math.ceil(too_much.total * slack * 100) / 100
        slower = stretched(scenario, factor)
        if overload(slower) is None and holds(slower):
            periods = ", ".join(
                f"{scenario.clients[source.client].name} every"
                f" {number_in_words(scenario.in_unit(source.gap_ns))} {scenario.unit}"
                for source in slower.sources
                if source.pattern is Pattern.EVERY
            )
            return f"or ask {factor:g} times less often" + (f" ({periods})" if periods else "")
    return None


def _which_chip(scenario: Scenario, too_much: CoreOverload, holds: Holds, on_chip: OnChip | None) -> str:
    wanted = f"or take a chip on which these runs take {1 / too_much.total:.0%} of the time"
    if on_chip is None or scenario.soc is None or all(client.model is None for client in scenario.clients):
        return f"{wanted}; which one cannot be told, as a scenario with 'run' gives times and no models"
    newest = find_soc(scenario.soc).arch
    loads: dict[str, float] = {}
    for soc in catalog().values():
        if soc.arch < newest or soc.name == scenario.soc:
            continue
        try:
            plan = on_chip(soc.name)
        except QnnError:
            continue  # a client asks for more VTCM or threads than that chip has
        still = overload(plan)
        loads[soc.name] = sum(loads_of(plan))
        if still is None and holds(plan):
            return f"or take {soc.name} ({soc.arch_name}): there they need {loads[soc.name]:.0%} of the time"
    if not loads:
        return f"{wanted}; no newer chip is known that has what the clients ask for"
    best = min(loads, key=lambda name: loads[name])
    return f"{wanted}; no known chip does: on {best} they still need {loads[best]:.0%}"
