"""A trace as marks in lanes: one lane for each client, each unit of each core, its VTCM and its DMA.

Every picture is made of marks. A mark lies in a *lane* (one line of a picture: a client, an HVX thread) of a
*group* (a heading). Times are integer nanoseconds of one clock. Plans and recordings are drawn from the same
marks, so that the two can be compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from openhtp.records.phases import Interval, Phase, Phases, client_phases, phases_of
from openhtp.records.trace import ClocksChanged, Granted, Trace, Track, Units

Args = dict[str, str | int | float | bool]


class TimelineSpan(Struct, frozen=True, kw_only=True):
    """Something that took time. ``category`` says of what kind (``running``, ``waiting``, ``vtcm``...)."""

    lane: str
    name: str
    start_ns: int
    duration_ns: int
    category: str = ""
    group: str = ""
    args: Args | None = None

    @property
    def end_ns(self) -> int:
        """When it was over."""
        return self.start_ns + self.duration_ns


class Instant(Struct, frozen=True, kw_only=True):
    """Something that happened at a moment."""

    lane: str
    name: str
    at_ns: int
    category: str = ""
    group: str = ""
    args: Args | None = None


class Counter(Struct, frozen=True, kw_only=True):
    """Values that hold from this moment on, drawn stacked."""

    name: str
    at_ns: int
    values: dict[str, int | float]
    group: str = ""


class Flow(Struct, frozen=True, kw_only=True):
    """An arrow from a moment in one lane to a moment in another: one job made way for the other."""

    name: str
    number: int
    from_lane: str
    from_ns: int
    to_lane: str
    to_ns: int
    from_group: str = ""
    to_group: str = ""


Mark = TimelineSpan | Instant | Counter | Flow

CLIENTS, HMX, HVX, VTCM, DMA = "Clients", "HMX", "HVX", "VTCM", "DMA"
CLOCKS = "Clocks"
YIELD, DEADLINE, MISSED = "yield", "deadline", "missed"
"""What happens at a moment: categories of instants."""


def on_core(core: int, name: str) -> str:
    """A group or unit of a core: those of the first go by their bare names, as most chips have no other."""
    return f"core{core}.{name}" if core else name


def kind_of(group: str) -> str:
    """``HVX`` of ``core1.HVX``: what a group holds, on whatever core."""
    return group.rpartition(".")[2]


def trace_to_marks(trace: Trace) -> list[Mark]:
    """Everything that a device recorded. Clients of one name are told apart by their sessions."""
    tracks = {
        number: msgspec.structs.replace(track, name=named_track(trace, number))
        for number, track in trace.tracks.items()
    }
    return phases_to_marks(phases_of(trace), tracks)


def named_track(trace: Trace, number: int) -> str:
    """The name of a client's lane."""
    track = trace.tracks[number]
    alone = sum(other.name == track.name for other in trace.tracks.values()) == 1
    return track.name if alone else f"{track.name} ({track.session}.{number})"


def phases_to_marks(phases: Phases, tracks: Mapping[int, Track]) -> list[Mark]:
    """Clients with their phases and steps, the resources they held, yields, and missed deadlines.

    Core by core, as viewers show lanes in the order in which they appear.
    """
    marks: list[Mark] = []
    by_client = client_phases(phases.intervals)
    for number in sorted(by_client, key=lambda number: (tracks[number].core, number)):
        group, lane = _client_lane(tracks[number])
        marks += [
            _span(group, lane, i.phase.value, i.start_ns, i.end_ns, i.phase.value) for i in by_client[number]
        ]
    for client, step in phases.steps:
        group, lane = _client_lane(tracks[client])
        marks.append(_span(group, lane, f"step {step.step}", step.t, step.end, "step", {"job": step.job}))
    for core in sorted({track.core for track in tracks.values()}):
        marks.extend(_on_core(core, phases, tracks))
    marks.extend(_yields(phases, tracks))
    marks.extend(_deadlines(phases, tracks))
    marks.extend(_queue(phases))
    marks.extend(_clocks(phases))
    return marks


def lanes_of(units: Units, tracks: Mapping[int, Track]) -> list[tuple[str, str]]:
    """(group, lane) of every unit and client, busy or not, as the marks name them."""
    lanes: list[tuple[str, str]] = []
    for core in range(units.cores):
        for kind, count in ((HMX, units.hmx), (HVX, units.hvx)):
            lanes += [(on_core(core, kind), on_core(core, f"{kind}{unit}")) for unit in range(count)]
        lanes.append((on_core(core, VTCM), on_core(core, VTCM)))
    return lanes + [_client_lane(track) for track in tracks.values()]


def _client_lane(track: Track) -> tuple[str, str]:
    return on_core(track.core, CLIENTS), track.name


def _on_core(core: int, phases: Phases, tracks: Mapping[int, Track]) -> list[Mark]:
    """The use of one core's units, VTCM and DMA."""
    marks: list[Mark] = []
    for i in phases.intervals:
        if i.grant is not None and i.grant.core == core:
            marks.extend(_resource_marks(i, i.grant, tracks[i.client].name))
    lane = on_core(core, DMA)
    for client, at_core, moved in phases.transfers:
        if at_core == core:
            args: Args = {"job": moved.job, "what": moved.what.value, "bytes": moved.nbytes}
            marks.append(_span(lane, lane, tracks[client].name, moved.t, moved.end, "transfer", args))
    return marks


def _resource_marks(interval: Interval, grant: Granted, name: str) -> list[Mark]:
    """The units and the VTCM that a job held while it ran."""
    start, end = interval.start_ns, interval.end_ns
    args: Args = {"job": interval.job}
    marks: list[Mark] = [
        _span(on_core(grant.core, kind), on_core(grant.core, f"{kind}{unit}"), name, start, end, "unit", args)
        for kind, units in ((HMX, grant.hmx), (HVX, grant.hvx))
        for unit in units
    ]
    if grant.vtcm_bytes:
        range_args: Args = {**args, "start_bytes": grant.vtcm_start, "bytes": grant.vtcm_bytes}
        lane = on_core(grant.core, VTCM)
        marks.append(_span(lane, lane, name, start, end, "vtcm", range_args))
    return marks


def _yields(phases: Phases, tracks: Mapping[int, Track]) -> list[Mark]:
    """The requests to yield, and an arrow from each job that made way to the jobs that started then."""
    marks: list[Mark] = []
    for eviction in phases.evictions:
        group, lane = _client_lane(tracks[eviction.client])
        at = eviction.asked_ns
        marks.append(Instant(group=group, lane=lane, name="asked to yield", at_ns=at, category=YIELD))
    started: dict[int, list[Interval]] = {}
    for i in phases.intervals:
        if i.grant is not None:
            started.setdefault(i.start_ns, []).append(i)
    numbers = itertools.count(1)
    for i in phases.intervals:
        if i.phase is not Phase.PAUSED:
            continue
        group, lane = _client_lane(tracks[i.client])
        for follower in started.get(i.start_ns, ()):
            to_group, to_lane = _client_lane(tracks[follower.client])
            if follower.client != i.client and to_group == group:
                marks.append(
                    Flow(
                        name="makes way for",
                        number=next(numbers),
                        from_group=group,
                        from_lane=lane,
                        from_ns=i.start_ns,
                        to_group=to_group,
                        to_lane=to_lane,
                        to_ns=i.start_ns,
                    )
                )
    return marks


def _deadlines(phases: Phases, tracks: Mapping[int, Track]) -> list[Mark]:
    """The deadlines of jobs, and which were missed."""
    marks: list[Mark] = []
    for job in phases.ended:
        if job.deadline_ns is None:
            continue
        group, lane = _client_lane(tracks[job.client])
        at, args = job.deadline_ns, Args(job=job.job)
        name, category = "deadline", DEADLINE
        if job.missed:
            name, category = "missed its deadline", MISSED
            args["late_ns"] = max(0, job.ended_ns - at)
        marks.append(Instant(group=group, lane=lane, name=name, at_ns=at, category=category, args=args))
    return marks


def _queue(phases: Phases) -> list[Mark]:
    """The number of executions under way."""
    changes: dict[int, int] = {}
    for job in phases.ended:
        changes[job.submitted_ns] = changes.get(job.submitted_ns, 0) + 1
        changes[job.ended_ns] = changes.get(job.ended_ns, 0) - 1
    depths = itertools.accumulate(changes[t] for t in sorted(changes))
    return [
        Counter(name="queue", at_ns=t, values={"accepted": depth}, group=CLIENTS)
        for t, depth in zip(sorted(changes), depths, strict=True)
    ]


def _clocks(phases: Phases) -> list[Mark]:
    """The clocks of each core, where clients voted: corners as a lane, and clocks as counters."""
    marks: list[Mark] = []
    for now, start, end in phases.clock_times():
        group = on_core(now.core, CLOCKS)
        args: Args = {"core_mhz": now.core_mhz, "hmx_mhz": now.hmx_mhz, "bus_percent": now.bus_percent}
        corners = {"core": now.core_corner, "hmx": now.hmx_corner, "bus": now.bus_corner}
        args |= {f"{clock}_corner": corner for clock, corner in corners.items() if corner}
        marks.append(_span(group, group, _in_words(now), start, end, "clocks", {**args, "is": "modelled"}))
        counters = {"core MHz": now.core_mhz, "HMX MHz": now.hmx_mhz, "bus % of its highest": now.bus_percent}
        for name, value in counters.items():
            marks.append(Counter(name=f"{name} (modelled)", at_ns=start, values={"value": value}, group=group))
    return marks


def _in_words(now: ClocksChanged) -> str:
    parts = [
        ("core", now.core_corner, f"{now.core_mhz} MHz"),
        ("HMX", now.hmx_corner, f"{now.hmx_mhz} MHz"),
        ("bus", now.bus_corner, f"{now.bus_percent}%"),
    ]
    return ", ".join(" ".join(word for word in part if word) for part in parts)


def _span(
    group: str, lane: str, name: str, start: int, end: int, category: str, args: Args | None = None
) -> TimelineSpan:
    return TimelineSpan(
        group=group, lane=lane, name=name, start_ns=start, duration_ns=end - start, category=category, args=args
    )


def since_the_first(marks: Sequence[Mark]) -> list[Mark]:
    """The marks with times that count from the first of them. Clocks count from when the computer was started."""
    first = min((time for mark in marks for time in _times(mark).values()), default=0)
    return [
        msgspec.structs.replace(mark, **{name: time - first for name, time in _times(mark).items()})
        for mark in marks
    ]


def _times(mark: Mark) -> dict[str, int]:
    """The moments of a mark, by field."""
    if isinstance(mark, Flow):
        return {"from_ns": mark.from_ns, "to_ns": mark.to_ns}
    return {"start_ns": mark.start_ns} if isinstance(mark, TimelineSpan) else {"at_ns": mark.at_ns}
