"""The planner: what would these clients see on that device? Virtual clock, modelled times, no computing.

>>> import openhtp
>>> result = openhtp.plan({"device": {"hvx": 1, "hmx": 1, "vtcm_mb": 1, "eviction": 10},
...     "clients": [{"name": "A", "priority": "low"}, {"name": "B", "priority": "high"}],
...     "events": [{"at": 0, "client": "A", "run": 50}, {"at": 20, "client": "B", "run": 30}]})
>>> result["B"].max
40

Knows scenarios, sources of requests and what to say about the outcome; the scheduling itself is ``sched``,
the very code that runs live, and ``records`` keeps what happened. Start at ``simulate.py``; ``scenario.py``
is the data, ``parsing.py`` the file; ``live.py`` runs a scenario on a device process instead, beside its plan.
``native.py`` has the C core, which plays the same rules where no record is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openhtp.core.checks import items_of, path_of, real_number, shown
from openhtp.core.errors import InvalidArgument
from openhtp.planning.keys import MAX_DETAILED
from openhtp.planning.models import ModelTime
from openhtp.planning.optimize import Advice, optimize
from openhtp.planning.parsing import expected_requests, load_scenario, parse_scenario
from openhtp.planning.reading import BadScenario
from openhtp.planning.result import ClientSummary, PlanResult
from openhtp.planning.scenario import Scenario
from openhtp.planning.simulate import Progress, simulate
from openhtp.records.phases import Phases

__all__ = [
    "Advice",
    "BadScenario",
    "ClientSummary",
    "PlanResult",
    "Scenario",
    "load_scenario",
    "optimize",
    "parse_scenario",
    "plan",
]


def plan(
    scenario: Scenario | Mapping[str, Any] | str | Path,
    *,
    detail: bool = True,
    window: tuple[float, float] | None = None,
    model_time: ModelTime | None = None,
    progress: Progress | None = None,
) -> PlanResult:
    """Run a scenario (a file, the same as a mapping, or a ``Scenario``) on the virtual clock.

    Args:
        scenario: what to plan.
        detail: keep who held what when; needed for pictures, traces and the JSON format. Leave it out for
            long scenarios of which only the table matters.
        window: keep detail only between these two times, in the scenario's unit.
        model_time: how long a model file takes, for scenarios with ``model:``; by default, the cost model's time.
        progress: called from time to time with the part of the scenario's duration, 0 to 1, that is done.

    Raises:
        BadScenario: the scenario is wrong; the message names the place.
    """
    if not isinstance(detail, bool):
        raise InvalidArgument(f"detail is {shown(detail)}; expected True or False")
    _check_callback("model_time", model_time)
    _check_callback("progress", progress)
    loaded = _load(scenario, model_time)
    if detail and window is None:
        _verify_detail(loaded)
    phases = None
    if detail:
        first, last = (0.0, None) if window is None else _checked_window(window)
        last_ns = None if last is None else round(last * loaded.unit_ns)
        phases = Phases(round(first * loaded.unit_ns), last_ns)
    return PlanResult(simulate(loaded, phases=phases, progress=progress))


def _verify_detail(scenario: Scenario) -> None:
    amount = sum(expected_requests(scenario))
    if amount > MAX_DETAILED:
        raise BadScenario(
            f"about {amount:.2g} requests are too many to keep who held what when; the limit is"
            f" {MAX_DETAILED:.2g}: give a window, or detail=False"
        )


def _load(scenario: Scenario | Mapping[str, Any] | str | Path, model_time: ModelTime | None) -> Scenario:
    if isinstance(scenario, Scenario):
        return scenario
    if isinstance(scenario, Mapping):
        return parse_scenario(scenario, model_time=model_time)
    path = path_of(scenario)
    if path is None:
        raise InvalidArgument(
            f"scenario is {shown(scenario)}; expected the path of a file, a mapping or a Scenario"
        )
    return load_scenario(path, model_time=model_time)


def _check_callback(name: str, callback: object) -> None:
    if callback is not None and not callable(callback):
        raise InvalidArgument(f"{name} is {shown(callback)}; expected a function, or None")


def _checked_window(window: object) -> tuple[float, float | None]:
    times = [real_number(time) for time in items_of(window, 3) or ()]
    match times:
        case [float() as first, float() as last] if first <= last:
            return first, last
    raise InvalidArgument(f"window is {shown(window)}; expected two times, the earlier one first")
