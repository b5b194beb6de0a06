"""Several plans of one scenario in one picture."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from openhtp.planning.result import PlanResult
from openhtp.report.lanes import CLIENTS, kind_of
from openhtp.report.marks import Counter, Flow, Mark

Lanes = list[tuple[str, str]]


def side_by_side(results: Sequence[PlanResult]) -> tuple[list[Mark], Lanes]:
    """Marks and lanes: all of a single plan; of several their clients, in groups by policy."""
    if len(results) == 1:
        return results[0].marks(), results[0].lanes()
    marks: list[Mark] = []
    lanes: Lanes = []
    for number, result in enumerate(results):
        policy = result.scenario.policy.name
        for mark in result.marks():
            if isinstance(mark, Flow):
                both = {"from_group": f"{policy}.{mark.from_group}", "to_group": f"{policy}.{mark.to_group}"}
                marks.append(replace(mark, number=mark.number * len(results) + number, **both))
            elif isinstance(mark, Counter) or kind_of(mark.group) == CLIENTS:
                marks.append(replace(mark, group=f"{policy}.{mark.group}"))
        lanes += [(f"{policy}.{group}", lane) for group, lane in result.lanes() if kind_of(group) == CLIENTS]
    return marks, lanes
