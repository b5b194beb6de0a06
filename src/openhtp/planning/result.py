"""The results of plans: the table, the fixed JSON format, and the marks from which all pictures are drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from openhtp.core.errors import InvalidArgument
from openhtp.core.units import MIB, SECOND, duration_ns, number_in_words
from openhtp.planning.load import overload, starved
from openhtp.planning.scenario import Scenario
from openhtp.planning.simulate import ClientFigures, PlanRun
from openhtp.records.phases import Interval, client_phases
from openhtp.report.chrome import marks_to_chrome
from openhtp.report.lanes import (
    CLIENTS,
    HMX,
    HVX,
    VTCM,
    Counter,
    Flow,
    Mark,
    kind_of,
    lanes_of,
    on_core,
    phases_to_marks,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSummary:
    """One row of the table; times in the scenario's unit, all of them modelled."""

    runs: int
    p50: float | None
    p99: float | None
    max: float | None
    waiting_mean: float | None
    waiting_max: float | None
    yields: int
    deadline: float | None
    missed: int
    not_done: int
    busy: float
    priority: str
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    tokens_per_s: float | None = None
    # Of a graph that is switched: how often it was loaded before a run, and how long that took altogether.
    loads: int = 0
    loading: float = 0


def percentile(values: list[int], percent: float) -> int | None:
    """Nearest rank: the smallest value that at least ``percent`` of all do not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def _percent(share: float) -> str:
    """A share rounded up, so that 100 % is said only of a deadline that is used up or missed."""
    return f"{math.ceil(share * 100 - 1e-9):,} %"


class PlanResult:
    """The outcome of a plan. Every number in it is modelled."""

    def __init__(self, run: PlanRun) -> None:
        self.run = run
        self.scenario = run.scenario

    @property
    def missed(self) -> int:
        """Missed deadlines of all clients together."""
        return self.run.missed

    @property
    def verdict(self) -> str:
        """Whether all deadlines hold, in a line: the client nearest to its deadline, or those that miss theirs."""
        rows = {name: row for name, row in self.clients.items() if row.deadline is not None}
        if not rows:
            return "no client has a deadline"
        # A deadline of a nanosecond is the shortest, so no share is divided by zero.
        shares = {name: row.max / row.deadline for name, row in rows.items() if row.max and row.deadline}
        worst = max(shares, key=lambda name: shares[name], default=None)
        nearest = "" if worst is None else f"worst {_percent(shares[worst])} of its deadline ({worst})"
        too_much = overload(self.scenario)
        if too_much is not None:
            nearest += f"; {_percent(too_much.total)} of the time is asked for, so the backlog grows"
        elif hungry := starved(self.run):
            nearest += f"; {', '.join(self.scenario.clients[number].name for number in hungry)} starves"
        if not self.missed:
            return f"all deadlines hold, {nearest}" if nearest else "all deadlines hold: nothing was asked for"
        late = [
            f"{name} {row.missed:,} of {row.runs + row.not_done:,}" for name, row in rows.items() if row.missed
        ]
        return f"deadlines missed: {', '.join(late)}" + (f"; {nearest}" if nearest else "")

    def __repr__(self) -> str:
        scenario, run = self.scenario, self.run
        runs = sum(len(figures.latencies_ns) for figures in run.clients)
        end = f"{number_in_words(scenario.in_unit(run.end_ns))} {scenario.unit}"
        return (
            f"<PlanResult of {scenario.name!r}: {len(run.clients)} clients, {runs} runs in {end},"
            f" {run.missed} missed deadlines>"
        )

    def __getitem__(self, client: str) -> ClientSummary:
        return self.clients[client]

    @property
    def clients(self) -> dict[str, ClientSummary]:
        """Summaries by client name."""
        pairs = zip(self.scenario.clients, self.run.clients, strict=True)
        return {spec.name: self._summary(figures, index) for index, (spec, figures) in enumerate(pairs)}

    def _summary(self, figures: ClientFigures, index: int) -> ClientSummary:
        spec = self.scenario.clients[index]
        runs = len(figures.latencies_ns)

        def in_unit(value: float | None) -> float | None:
            return None if value is None else self.scenario.in_unit(value)

        return ClientSummary(
            runs=runs,
            p50=in_unit(percentile(figures.latencies_ns, 50)),
            p99=in_unit(percentile(figures.latencies_ns, 99)),
            max=in_unit(max(figures.latencies_ns, default=None)),
            waiting_mean=in_unit(round(figures.waits_total_ns / runs)) if runs else None,
            waiting_max=in_unit(figures.waits_max_ns) if runs else None,
            yields=figures.yields,
            deadline=in_unit(spec.deadline_ns),
            missed=figures.missed,
            not_done=figures.not_done,
            busy=round(figures.busy_ns / max(1, self.run.end_ns), 6),
            priority=spec.priority.name.lower(),
            ttft_p50=in_unit(percentile(figures.first_tokens_ns, 50)),
            ttft_p99=in_unit(percentile(figures.first_tokens_ns, 99)),
            tokens_per_s=round(figures.tokens * SECOND / figures.writing_ns, 3) if figures.writing_ns else None,
            loads=figures.loads,
            loading=self.scenario.in_unit(figures.load_ns),
        )

    def summary(self) -> dict[str, Any]:
        """The summary as plain values."""
        run = self.run
        return {
            "scenario": self.scenario.name,
            "times": "modelled",
            "unit": self.scenario.unit,
            "policy": self.scenario.policy.name,
            "end": self.scenario.in_unit(run.end_ns),
            "scheduling_events": run.events,
            "missed_deadlines": run.missed,
            "verdict": self.verdict,
            "utilisation": {name: round(value, 6) for name, value in run.utilisation().items()},
            "clients": {name: msgspec.to_builtins(row) for name, row in self.clients.items()},
            "notes": list(self.scenario.notes),
        }

    def to_json(self) -> dict[str, Any]:
        """The fixed format of ``plan --json``; ``clocks`` only where clients vote."""
        document = {
            "clients": self.client_states(),
            "resources": self.resource_rows(),
            "summary": self.summary(),
        }
        return {**document, "clocks": self.clock_rows()} if self.scenario.has_votes else document

    def _intervals(self) -> list[Interval]:
        return [] if self.run.phases is None else self.run.phases.intervals

    def client_states(self) -> dict[str, list[dict[str, Any]]]:
        """Per client: running, waiting, paused, merged and without overlap."""
        phases = client_phases(self._intervals())
        time = self.scenario.in_unit
        return {
            spec.name: [
                {"state": i.phase.value, "start": time(i.start_ns), "end": time(i.end_ns)}
                for i in phases.get(number, [])
            ]
            for number, spec in enumerate(self.scenario.clients)
        }

    def clock_rows(self) -> list[dict[str, Any]]:
        """How fast each core went, from when to when."""
        times, time = [] if self.run.phases is None else self.run.phases.clock_times(), self.scenario.in_unit
        return [
            {
                "core": now.core,
                "start": time(start),
                "end": time(end),
                "core_mhz": now.core_mhz,
                "hmx_mhz": now.hmx_mhz,
                "bus_percent": now.bus_percent,
                "corners": {"core": now.core_corner, "hmx": now.hmx_corner, "bus": now.bus_corner},
            }
            for now, start, end in times
        ]

    def resource_rows(self) -> list[dict[str, Any]]:
        """One row for every time at which a unit or a cell of VTCM changes hands."""
        edges: dict[int, list[tuple[bool, Interval]]] = {}
        for interval in self._intervals():
            if interval.grant is not None:
                edges.setdefault(interval.start_ns, []).append((True, interval))
                edges.setdefault(interval.end_ns, []).append((False, interval))
        holders: dict[int, Interval] = {}
        rows: list[dict[str, Any]] = []
        last: dict[str, str | None] = {}
        for t in sorted(edges):
            for _, interval in sorted(edges[t], key=lambda edge: edge[0]):  # ends before starts
                if interval.start_ns == t:
                    holders[interval.job] = interval
                elif holders.get(interval.job) is interval:
                    del holders[interval.job]
            cells = _cells(self.scenario, holders.values())
            if cells != last:
                rows.append({"t": self.scenario.in_unit(t), **cells})
                last = cells
        return rows

    def marks(self) -> list[Mark]:
        """The run as marks in lanes: one for each client, each unit of each core, its VTCM and its DMA."""
        phases = self.run.phases
        return [] if phases is None else phases_to_marks(phases, self.scenario.tracks)

    def lanes(self) -> list[tuple[str, str]]:
        """(group, lane) of every unit and client, busy or not, as the marks name them."""
        return lanes_of(self.scenario.units, self.scenario.tracks)

    def chrome_trace(self) -> bytes:
        """The run as a Chrome trace."""
        return marks_to_chrome(self.marks(), modelled=True)


def _cells(scenario: Scenario, holders: Iterable[Interval]) -> dict[str, str | None]:
    device = scenario.device
    cells: dict[str, str | None] = {}
    for core in range(device.cores):
        for kind, count in ((HMX, device.hmx), (HVX, device.hvx), (VTCM, scenario.vtcm_cells)):
            for unit in range(count):
                cells[on_core(core, f"{kind}{unit}")] = None
    filled: dict[str, int] = {}
    for interval in holders:
        grant = interval.grant
        name = scenario.clients[interval.client].name
        if grant is None:
            continue
        for kind, units in ((HMX, grant.hmx), (HVX, grant.hvx)):
            for unit in units:
                cells[on_core(grant.core, f"{kind}{unit}")] = name
        end = grant.vtcm_start + grant.vtcm_bytes
        for cell in range(grant.vtcm_start // MIB, -(-end // MIB)):
            # Where two clients share a cell of 1 MB, it shows the one with more of it.
            inside = min(end, (cell + 1) * MIB) - max(grant.vtcm_start, cell * MIB)
            key = on_core(grant.core, f"{VTCM}{cell}")
            if inside > filled.get(key, 0):
                filled[key] = inside
                cells[key] = name
    return cells


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


# Limits that a plan must keep, for continuous integration: missed deadlines, and times of single clients.


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceededLimit:
    """A limit that a plan does not keep: ``what`` is ``miss_rate`` or ``p99``, in the scenario's unit."""

    policy: str
    client: str
    what: str
    limit: float
    found: float | None
    unit: str

    def __str__(self) -> str:
        who = f"{self.client} ({self.policy} policy)"
        if self.what == "miss_rate":
            return f"{who} misses {self.found:.2%} of its deadlines; allowed are {self.limit:.2%}"
        if self.found is None:
            return f"{who} finished no run; its p99 should be at most {number_in_words(self.limit)} {self.unit}"
        p99, limit = number_in_words(self.found), number_in_words(self.limit)
        return f"{who} has a p99 of {p99} {self.unit}; allowed are {limit} {self.unit}"


def exceeded(
    result: PlanResult, *, max_miss_rate: float | None = None, max_p99: Mapping[str, float] | None = None
) -> list[ExceededLimit]:
    """The limits that a plan exceeds: misses of each client as a share of 1, times in the scenario's unit."""
    scenario = result.scenario
    limits: list[tuple[str, str, float, float | None]] = []
    for name, row in result.clients.items():
        if max_miss_rate is not None and row.deadline is not None:
            limits.append((name, "miss_rate", max_miss_rate, row.missed / max(1, row.runs + row.not_done)))
        if max_p99 and name in max_p99:
            limits.append((name, "p99", max_p99[name], row.p99))
    policy, unit = scenario.policy.name, scenario.unit
    return [
        ExceededLimit(policy=policy, client=client, what=what, limit=limit, found=value, unit=unit)
        for client, what, limit, value in limits
        if value is None or value > limit
    ]


def read_limit(text: str, scenario: Scenario) -> tuple[str, float]:
    """``camera=20`` or ``camera=20ms``: a client and a time, in the scenario's unit where none is given."""
    name, _, amount = text.rpartition("=")
    names = [client.name for client in scenario.clients]
    if name not in names:
        raise InvalidArgument(f"limit {text!r}; expected CLIENT=TIME, with one of {', '.join(names)}")
    time_ns = duration_ns(amount, scenario.unit_ns)
    if time_ns is None:
        raise InvalidArgument(f"limit {text!r}: {amount!r} is no time; expected something like 20 or 20ms")
    return name, time_ns / scenario.unit_ns
