"""A scenario on a device process, on the wall clock: measured, so no two runs are quite the same."""

from __future__ import annotations

from collections.abc import Sequence

from openhtp.core.enumerations import Outcome
from openhtp.core.errors import QnnError
from openhtp.planning.live import LiveResult, run_live
from openhtp.records.phases import phases_of
from openhtp.sweeping.measures import Measure, Measured
from openhtp.sweeping.measures.plan import AXES, CLIENT_NUMBERS, FAMILIES, Scenarios, deadline_numbers, files_of
from openhtp.sweeping.study import Files, Objective, Scalar, Study, Values


class LiveRuns:
    """Runs points on devices of their own."""

    def __init__(self, study: Study, files: Files) -> None:
        self._scenarios = Scenarios(study, files)

    def run(self, points: Sequence[Values]) -> list[Measured]:
        """Run one point after the other."""
        return [self._measured(values) for values in points]

    def _measured(self, values: Values) -> Measured:
        try:
            stretch = values.get("stretch")
            return _numbers_of(
                run_live(self._scenarios.at(values), stretch=None if stretch is None else float(stretch))
            )
        except (QnnError, OSError) as error:
            return error


def _numbers_of(live: LiveResult) -> dict[str, Scalar]:
    """The numbers of a run in the scenario's time, as if it had not been stretched."""
    clients = live.scenario.clients
    numbers = {client.name: number for number, client in enumerate(clients)}
    latencies: list[list[int]] = [[] for _ in clients]
    missed, not_done = [0] * len(clients), [0] * len(clients)
    for job in phases_of(live.recorded).ended:
        number = numbers[live.recorded.tracks[job.client].name]
        if job.outcome is Outcome.DONE:
            latencies[number].append(round((job.ended_ns - job.submitted_ns) / live.stretch))
        else:
            not_done[number] += 1
        missed[number] += job.missed
    return {
        **deadline_numbers(clients, [sorted(times) for times in latencies], missed, not_done),
        "same_order": live.same_order,
        "stretch": round(live.stretch, 6),
    }


MEASURE = Measure(
    axes=(*(axis for axis in AXES if axis != "seeds"), "stretch"),
    families=FAMILIES,
    needs=("scenario",),
    numbers=("margin", "missed", "miss_rate", "latency_us", "same_order", "stretch"),
    each=CLIENT_NUMBERS,
    objectives=(Objective("margin", largest=True), Objective("latency_us")),
    files=files_of,
    make=LiveRuns,
)
