"""A scenario on a device process, on the wall clock: measured, so no two runs are quite the same."""

from __future__ import annotations

from openhtp.core.enumerations import Outcome
from openhtp.planning.live import LiveResult, run_live
from openhtp.records.phases import phases_of
from openhtp.sweeping.measures import Measure
from openhtp.sweeping.measures.plan import AXES, CLIENT_NUMBERS, FAMILIES, Plans, deadline_numbers, files_of
from openhtp.sweeping.study import Objective, Scalar, Values


class LiveRuns(Plans):
    """Measures scenarios by running them on devices of their own."""

    def _numbers(self, values: Values) -> dict[str, Scalar]:
        stretch = values.get("stretch")
        live = run_live(self._scenarios.at(values), stretch=None if stretch is None else float(stretch))
        return _numbers_of(live)


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
