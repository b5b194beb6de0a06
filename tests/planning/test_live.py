"""Every case of the yielding and VTCM-sharing documents on the wall clock: the order is the planned one."""

from __future__ import annotations

from pathlib import Path

import pytest

from openhtp.planning import load_scenario, parse_scenario
from openhtp.planning.live import run_live
from openhtp.planning.scenario import Scenario

EXAMPLES = Path(__file__).parents[2] / "examples"
CASES = sorted([*EXAMPLES.glob("base-*.yaml"), *EXAMPLES.glob("*pd*.yaml"), *EXAMPLES.glob("vtcm-*.yaml")])


def keeps_its_order(scenario: Scenario) -> bool:
    """Phases last longer each time: a machine that is away for longer than a phase lasts reorders anything."""
    result = run_live(scenario)
    for slower in (1, 4, 4, 1):
        if result.same_order:
            return True
        result = run_live(scenario, stretch=slower * result.stretch)
    return result.same_order


@pytest.mark.parametrize("path", dict.fromkeys(CASES), ids=lambda path: path.stem)
def test_wall_clock_keeps_the_planned_order(path: Path) -> None:
    assert keeps_its_order(load_scenario(path))


def test_closed_loops_and_followers_run_live() -> None:
    scenario = parse_scenario(
        """
        device: {hvx: 4, hmx: 1, vtcm_mb: 8, eviction: 1}
        unit: ms
        clients:
          - {name: a, vtcm_mb: 8}
          - {name: b, vtcm_mb: 8}
        events:
          - {client: a, closed: 1, count: 3, run: 10}
          - {client: b, after: a, delay: 5, count: 2, run: 4}
        """
    )
    result = run_live(scenario)
    ends = [moment.client for moment in result.measured if moment.what == "end"]
    assert sorted(ends) == ["a", "a", "a", "b", "b"]


def test_two_cores_run_side_by_side_as_planned() -> None:
    scenario = parse_scenario(
        """
        device: {hvx: 4, hmx: 1, vtcm_mb: 8, cores: 2, eviction: 5}
        unit: ms
        policy: edf
        clients:
          - {name: a, deadline: 900}
          - {name: urgent, deadline: 100}
          - {name: b, core: 1}
        events:
          - {client: a, at: 0, run: 80}
          - {client: urgent, at: 25, run: 20}
          - {client: b, at: 10, run: 55}
        """
    )
    assert keeps_its_order(scenario)
