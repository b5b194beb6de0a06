"""How many requests a scenario will make, told before anything runs: a slip in the unit can ask for years."""

from __future__ import annotations

import graphlib

from openhtp.core.validating import WrittenValue
from openhtp.planning.ranges import MAX_REQUESTS
from openhtp.planning.scenario import ClientSpec, Pattern, RequestSource, Scenario

_SHOWN = 20


def verify_amount(scenario: Scenario, events: WrittenValue, places: list[WrittenValue]) -> None:
    """Refuse ``after`` chains that lead back to themselves, and more requests than are planned.

    ``places`` says where each source stands in the file.
    """
    try:
        amounts = expected_requests(scenario)
    except graphlib.CycleError as error:
        # The sorter tells the ring from the one who comes first; "after" reads the other way.
        ring = [scenario.clients[number].name for number in reversed(error.args[1])]
        shown = ring if len(ring) <= _SHOWN else [*ring[: _SHOWN - 1], "...", ring[-1]]
        events.fail(f"a cycle: {' after '.join(shown)}")
    total = 0
    for at, amount in zip(places, amounts, strict=True):
        total += amount
        if total > MAX_REQUESTS:
            at.fail(f"about {total:.2g} requests up to here; more than {MAX_REQUESTS:.2g} are not planned")


def expected_requests(scenario: Scenario) -> list[int]:
    """An upper estimate for each source; beyond what is planned it only says so.

    Followers multiply: whoever follows twice a client that follows twice is asked four times.

    Raises:
        graphlib.CycleError: a client follows itself.
    """
    of_client: dict[int, list[int]] = {}
    follows: dict[int, set[int]] = {}
    for number, source in enumerate(scenario.sources):
        of_client.setdefault(source.client, []).append(number)
        if source.after is not None:
            follows.setdefault(source.client, set()).add(source.after)
    amounts = [0] * len(scenario.sources)
    of_clients: dict[int, int] = {}
    for client in dict.fromkeys((*graphlib.TopologicalSorter(follows).static_order(), *of_client)):
        for number in of_client.get(client, ()):
            amounts[number] = _requests(scenario, scenario.sources[number], of_clients)
        of_clients[client] = sum(amounts[number] for number in of_client.get(client, ()))
    return amounts


def _requests(scenario: Scenario, source: RequestSource, of_clients: dict[int, int]) -> int:
    talk = scenario.clients[source.client].talk
    runs = 1 if talk is None else talk.runs
    counts = [MAX_REQUESTS + 1]
    if source.count is not None:
        counts.append(source.count)
    if source.after is not None:
        return min(*counts, of_clients[source.after]) * runs
    gap = _shortest_gap(source, scenario.clients[source.client])
    if gap:
        ends = [end for end in (source.until_ns, scenario.duration_ns) if end is not None]
        counts += [max(0, end - source.start_ns) // gap + 1 for end in ends]
    return min(counts) * source.burst * runs


def _shortest_gap(source: RequestSource, client: ClientSpec) -> int:
    if source.pattern is not Pattern.CLOSED:
        return source.gap_ns
    run = source.run_ns if client.timeout_ns is None else min(source.run_ns, client.timeout_ns)
    return max(1, (source.gap_ns + run) // source.in_flight)
