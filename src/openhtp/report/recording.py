"""What a device recorded, as trace records in the same lanes that a plan has, so that the two can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openhtp.trace.records import Args, Counter, Flow, Record, Span

_CLIENTS = "Clients"
# Most telling first: a graph with one job running and three waiting is running.
_STATES = ("running", "paused", "waiting")


class _Graph:
    """A graph while events are read: how many of its jobs are in which state."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.jobs = dict.fromkeys(_STATES, 0)
        self.since_ns = 0

    def state(self) -> str | None:
        return next((state for state in _STATES if self.jobs[state]), None)

    def move(self, before: str | None, after: str | None, t: int) -> list[Record]:
        """Move one job; returns the span that ends, if the graph's own state changes by it."""
        was = self.state()
        if before is not None:
            self.jobs[before] -= 1
        if after is not None:
            self.jobs[after] += 1
        if self.state() == was:
            return []
        since, self.since_ns = self.since_ns, t
        if was is None or since == t:
            return []
        return [_span(_CLIENTS, self.name, was, since, t, was)]


class _Job:
    """A job while events are read."""

    def __init__(self, graph: _Graph, t: int) -> None:
        self.graph = graph
        self.state = "waiting"
        self.since_ns = t
        self.grant: tuple[Any, ...] | None = None


def recording_to_records(recorded: Mapping[str, Any]) -> list[Record]:
    """Turn ``Device.stop_trace()`` into records: measured times of the device's own clock."""
    graphs = {int(number): _Graph(str(about["name"])) for number, about in recorded["graphs"].items()}
    records: list[Record] = []
    jobs: dict[int, _Job] = {}
    for event in recorded["events"]:
        kind, t, number = event[0], event[1], event[2]
        if kind == "submitted":
            job = jobs[number] = _Job(graphs[event[3]], t)
            records += job.graph.move(None, "waiting", t)
        elif number in jobs:  # others were queued before recording began
            records += _read(jobs[number], event, t, number)
            if kind == "finished":
                del jobs[number]
    depth = 0
    for event in recorded["events"]:
        if event[0] in ("submitted", "finished"):
            depth += 1 if event[0] == "submitted" else -1
            records.append(
                Counter(name="queue", at_ns=event[1], values={"accepted": max(0, depth)}, group=_CLIENTS)
            )
    return records


def _read(job: _Job, event: tuple[Any, ...], t: int, number: int) -> list[Record]:
    kind = event[0]
    if kind == "step":
        return [_span(_CLIENTS, job.graph.name, f"step {event[3]}", t, event[4], "step", {"job": number})]
    if kind == "granted":
        records = job.graph.move(job.state, "running", t)
        if job.state == "waiting":
            records.append(_queued(job, number, t))
        job.state, job.since_ns, job.grant = "running", t, event
        return records
    if kind == "released":
        records = [*_units(job, number, t), *job.graph.move(job.state, "paused", t)]
        job.state, job.since_ns, job.grant = "paused", t, None
        return records
    return job.graph.move(job.state, None, t)


def _units(job: _Job, number: int, t: int) -> list[Record]:
    """The units and the VTCM that a job held until now."""
    if job.grant is None:
        return []
    _, _, _, hmx, hvx, start_bytes, nbytes = job.grant
    name, since = job.graph.name, job.since_ns
    args: Args = {"job": number}
    lanes = [("HMX", f"HMX{unit}") for unit in hmx] + [("HVX", f"HVX{unit}") for unit in hvx]
    held: list[Record] = [_span(group, lane, name, since, t, "unit", args) for group, lane in lanes]
    if nbytes:
        place: Args = {**args, "start_bytes": start_bytes, "bytes": nbytes}
        held.append(_span("VTCM", "VTCM", name, since, t, "vtcm", place))
    return held


def _queued(job: _Job, number: int, t: int) -> Flow:
    lane = job.graph.name
    return Flow(
        name="queued",
        number=number,
        from_lane=lane,
        from_ns=job.since_ns,
        to_lane=lane,
        to_ns=t,
        from_group=_CLIENTS,
        to_group=_CLIENTS,
    )


def _span(group: str, lane: str, name: str, start: int, end: int, category: str, args: Args | None = None) -> Span:
    return Span(
        group=group, lane=lane, name=name, start_ns=start, duration_ns=end - start, category=category, args=args
    )
