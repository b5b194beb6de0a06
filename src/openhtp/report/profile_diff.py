"""Two profiles side by side: what got slower and what faster, node by node.

A side is a profile log, a schematic, or the analysis summary (QHAS) as JSON, ours or the vendor's. Nodes are
matched by name. A node that one side alone has may have been renamed, split or added: it is judged by the whole.
Sides whose clocks are both known are compared in microseconds, so that two chips can be; otherwise in cycles.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openhtp.core.errors import BadProfile
from openhtp.core.files import read_file
from openhtp.core.units import MIB
from openhtp.records.profile import Message, ProfileEvent, ProfileLogContent
from openhtp.report.linting import cycles_event
from openhtp.report.listing import EXECUTED, aggregated
from openhtp.report.profile_log import MAGIC, LogFileKind, kind_of, log_from, schematic_from

_MOST_BYTES = 512 * MIB
_CYCLES, _CRITICAL = 3003, 6001
_MEASURED = (3002, 3004, 400)
_US = 1e6
_ALL, _MAIN = "cycles of all threads", "cycles of the main thread"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSide:
    """One profile: cycles of each node, and of the whole timeline where that is known.

    ``measured`` has what calls took on the computer that ran them (us, mean of all runs).
    """

    name: str
    soc: str
    clock_hz: int
    nodes: Mapping[str, int]
    timeline: int | None
    kind: str
    version: str = ""
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """A node in both, or in one (None in the other); in the unit of the comparison."""

    node: str
    before: float | None
    after: float | None

    @property
    def delta(self) -> float:
        """How much longer; negative if it got faster."""
        return (self.after or 0.0) - (self.before or 0.0)

    @property
    def percent(self) -> float | None:
        """The change relative to before; None if there was nothing before."""
        return 100.0 * self.delta / self.before if self.before else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All nodes, those that got slowest first, and which of them count as regressions."""

    before: ProfileSide
    after: ProfileSide
    unit: str
    total: NodeChange
    changes: tuple[NodeChange, ...]
    slower: tuple[NodeChange, ...]
    total_is_slower: bool

    @property
    def holds(self) -> bool:
        """Whether nothing got slower than allowed."""
        return not self.slower and not self.total_is_slower

    @property
    def new(self) -> tuple[NodeChange, ...]:
        """Nodes that only the later side has."""
        return tuple(change for change in self.changes if change.before is None)

    @property
    def gone(self) -> tuple[NodeChange, ...]:
        """Nodes that only the earlier side has."""
        return tuple(change for change in self.changes if change.after is None)


def compare(before: ProfileSide, after: ProfileSide, *, threshold_percent: float, least: float) -> Comparison:
    """Compare two sides. A node of both is slower if it lost more than the threshold, and at least ``least``."""
    if before.kind != after.kind:
        raise BadProfile(
            f"{before.name} has {before.kind}, {after.name} has {after.kind}; profile both at the same level"
        )
    timed = bool(before.clock_hz and after.clock_hz)
    if before.soc != after.soc and not timed:
        raise BadProfile(
            f"{before.name} is of {before.soc or 'no named chip'}, {after.name} of {after.soc or 'no named chip'};"
            " without both clocks their cycles cannot be compared"
        )

    def value(side: ProfileSide, cycles: int | None) -> float | None:
        return None if cycles is None else cycles * _US / side.clock_hz if timed else float(cycles)

    names = dict.fromkeys([*before.nodes, *after.nodes])
    changes = [
        NodeChange(
            node=name,
            before=value(before, before.nodes.get(name)),
            after=value(after, after.nodes.get(name)),
        )
        for name in names
    ]
    changes.sort(key=lambda change: -change.delta)
    # Timelines say how long it takes; where one is missing, the work of all nodes has to do.
    lines = before.timeline, after.timeline
    sums = sum(before.nodes.values()), sum(after.nodes.values())
    first, second = sums if None in lines else lines
    name = "total (work)" if None in lines else "total"
    total = NodeChange(node=name, before=value(before, first), after=value(after, second))

    def worse(change: NodeChange) -> bool:
        percent = change.percent
        return change.delta > 0 and change.delta >= least and (percent is None or percent > threshold_percent)

    return Comparison(
        before=before,
        after=after,
        unit="us" if timed else "cycles",
        total=total,
        changes=tuple(changes),
        slower=tuple(change for change in changes if change.before is not None and worse(change)),
        total_is_slower=worse(total),
    )


def read_side(path: str | os.PathLike[str]) -> ProfileSide:
    """The profile in a file. Raises BadProfile if the file has no cycles of nodes."""
    data = read_file(path, most=_MOST_BYTES, what="a profile log, schematic or analysis summary", error=BadProfile)
    if not data.startswith(MAGIC):
        return _from_qhas(data, str(path))
    if kind_of(data) is LogFileKind.SCHEMATIC:
        schematic = schematic_from(data, str(path))
        return _from_event(cycles_event(schematic), str(path), schematic.soc, schematic.clock_hz, schematic.cycles)
    return _from_log(log_from(data, str(path)), str(path))


def _from_log(log: ProfileLogContent, name: str) -> ProfileSide:
    """The mean of all runs of each graph; of several graphs, one after the other."""
    runs: dict[str, list[Message]] = {}
    for message in log.messages:
        if message.method in EXECUTED:
            runs.setdefault(message.graph, []).append(message)
    nodes: dict[str, int] = {}
    kinds, timeline, seconds = set[int](), 0, 0.0
    for graph, own in runs.items():
        average = aggregated([message.events for message in own], lambda values: sum(values) // len(values))
        event = next((event for event in average if event.type in (_CYCLES, _CRITICAL)), None)
        if event is None:
            continue
        kinds.add(event.type)
        where = f"{graph}: " if len(runs) > 1 else ""
        nodes |= {where + _node(row.name): row.value for row in event.events}
        timeline += sum(run.timeline_cycles for run in own) // len(own)
        seconds += sum(run.timeline_cycles / run.clock_hz for run in own if run.clock_hz) / len(own)
    if not kinds:
        raise BadProfile(
            f"{name} has no cycles of nodes, it was profiled at the level {log.level!r}; expected detailed,"
            " linting or optrace"
        )
    # Votes may have changed between runs: the clock at which all of them together take as long as they did.
    clock_hz = round(timeline / seconds) if seconds else log.clock_hz
    kind = _MAIN if _CRITICAL in kinds else _ALL
    return ProfileSide(
        name=name,
        soc=log.soc,
        clock_hz=clock_hz,
        nodes=nodes,
        timeline=timeline or None,
        kind=kind,
        version=log.version,
        measured=_measured(runs.values()),
    )


def _measured(graphs: Iterable[Sequence[Message]]) -> dict[str, float]:
    """Times of a run on the computer that ran it, by event: the mean of all runs, of all graphs together."""
    means: dict[str, float] = {}
    for own in graphs:
        for message in own:
            for event in message.events:
                if event.type in _MEASURED and not event.modelled:
                    means[event.name] = means.get(event.name, 0.0) + event.value / len(own)
    return means


def _from_event(event: ProfileEvent, name: str, soc: str, clock_hz: int, timeline: int | None) -> ProfileSide:
    nodes = {_node(row.name): row.value for row in event.events}
    return ProfileSide(name=name, soc=soc, clock_hz=clock_hz, nodes=nodes, timeline=timeline, kind=_ALL)


def _node(row: str) -> str:
    """The name in a row of a listing, as the analysis summary has it: numbers may differ between two sides."""
    label = row.removesuffix(" (cycles)")
    if label == "OpId_0":
        return "SystemService_0"
    return label.partition(":OpId_")[0].removesuffix(" OpId_2").removesuffix(" OpId_3")


def _from_qhas(data: bytes, name: str) -> ProfileSide:
    try:
        document = json.loads(data)
        overall = document["data"]["htp_overall_summary"]["data"]
        rows = document["data"]["qnn_op_instances_nodes"]["data"]
        nodes = {str(row["qnn_op"]): _count(row["cycles"]) for row in rows}
        timeline = max(_count(row["timeline_cycles"]) for row in overall)
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        # Not its repr: of a file that is no text, that repeats the whole file.
        reason = f"{type(problem).__name__}: {problem}"
        raise BadProfile(
            f"{name} is no profile log or schematic of openhtp, and no analysis summary (QHAS): {reason}"
        ) from problem
    source: dict[str, Any] = document.get("source") if isinstance(document.get("source"), dict) else {}
    clock = source.get("clock_mhz", 0)
    clock_hz = round(clock * 1e6) if isinstance(clock, int | float) and 0 < clock < 1e9 else 0
    soc = str(source.get("soc", ""))
    return ProfileSide(name=name, soc=soc, clock_hz=clock_hz, nodes=nodes, timeline=timeline, kind=_ALL)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is no number of cycles")
    return value
