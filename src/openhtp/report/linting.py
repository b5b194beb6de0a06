"""Cycles of a graph's nodes as profile events: a row for each, and with linting what it waited for.

The main thread is the leading matrix or vector op. When neither runs it waits, for the scheduler or for
data; that wait counts for the op that runs next.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from openhtp.records.profile import ProfileEvent
from openhtp.records.schematic import (
    INPUT,
    OUTPUT,
    SYSTEM,
    ChipEngine,
    HtpOp,
    OpRole,
    QnnOp,
    Schematic,
    instants,
    label,
    rank,
)
from openhtp.report.listing import header, metadata

MOST_NAMES = 10
CRITICAL_PATH, _CYCLES, _NODE = 6001, 3003, 404
_WAIT, _OVERLAP, _WAIT_OVERLAP, _RESOURCES, _BACKGROUND, _WAIT_BACKGROUND = 5001, 5002, 5003, 5004, 5005, 5006
_WORK = (OpRole.COMPUTE, OpRole.READ, OpRole.WRITE)
"""Syncs and checkpoints are the waiting itself."""
_BITS = ((ChipEngine.HVX, 1), (ChipEngine.HMX, 2), (ChipEngine.DMA, 4))


@dataclass(slots=True)
class Lint:
    """The linting data of one node, in cycles; other nodes by how long they ran beside it."""

    node: QnnOp
    cycles: int = 0
    wait: int = 0
    overlap: int = 0
    wait_overlap: int = 0
    beside: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    wait_beside: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    engines: set[ChipEngine] = field(default_factory=set)

    @property
    def resources(self) -> str:
        """The units that it uses, as ``HVX, HMX, DMA``."""
        return ", ".join(engine.value for engine, _ in _BITS if engine in self.engines)


def in_listing_order(nodes: tuple[QnnOp, ...]) -> list[QnnOp]:
    """Input first, then what belongs to no node, the nodes, and the output last."""
    order = {INPUT: (0, 0), SYSTEM: (1, 0), OUTPUT: (3, 0)}
    return sorted(nodes, key=lambda node: order.get(node.number, (2, node.number)))


def cycles_event(schematic: Schematic) -> ProfileEvent:
    """Cycles of every node over all threads: the work, not the time. The total is their sum."""
    work: dict[int, int] = defaultdict(int)
    for op in schematic.executed:
        work[op.owner] += op.cycles
    rows = tuple(_row(node, work[node.number]) for node in in_listing_order(schematic.nodes))
    return ProfileEvent(
        _CYCLES,
        "Accelerator (execute) time (cycles)",
        sum(row.value for row in rows),
        "cycles",
        rows,
        modelled=True,
    )


def linting_event(schematic: Schematic) -> ProfileEvent:
    """Cycles of every node on the main thread, with what it waited for and what ran beside it."""
    lints = lint(schematic)
    names = schematic.by_number
    rows = tuple(_row(each.node, each.cycles, _details(each, names)) for each in lints)
    total = sum(each.cycles + each.wait for each in lints)
    return ProfileEvent(
        CRITICAL_PATH, "Accelerator (critical path execute) time (cycles)", total, "cycles", rows, modelled=True
    )


def lint(schematic: Schematic) -> list[Lint]:
    """All nodes, in the order of listings. Of several cores, the one that takes longest is the critical path."""
    lints = {node.number: Lint(node) for node in schematic.nodes}
    ops = schematic.executed
    for op in ops:
        if op.engine is not ChipEngine.NONE:
            lints[op.owner].engines.add(op.engine)
    by_core: dict[int, list[HtpOp]] = defaultdict(list)
    for op in ops:
        by_core[op.core].append(op)
    if by_core:
        _lint_core(max(by_core.values(), key=_timeline), lints)
    return [lints[node.number] for node in in_listing_order(schematic.nodes)]


def _timeline(ops: list[HtpOp]) -> int:
    return max(op.end for op in ops) - min(op.start for op in ops)


def _lint_core(ops: list[HtpOp], lints: dict[int, Lint]) -> None:
    idle: list[tuple[int, list[HtpOp]]] = []
    last: Lint | None = None
    for start, end, running in instants(ops):
        main = min(
            (op for op in running if op.role is OpRole.COMPUTE),
            key=lambda op: (rank(op), op.start, op.serial),
            default=None,
        )
        cycles = end - start
        if main is None:
            idle.append((cycles, list(running)))
            continue
        last = lints[main.owner]
        _note_wait(last, idle, main)
        idle = []
        last.cycles += cycles
        others = {op.owner for op in running if op.role in _WORK and not _is_same_work(op, main)}
        if others:
            last.overlap += cycles
            for owner in others:
                last.beside[owner] += cycles
    if idle:  # results that are still written when everything is computed
        output = lints[OUTPUT]
        output.cycles += sum(cycles for cycles, _ in idle)


def _is_same_work(op: HtpOp, main: HtpOp) -> bool:
    """Whether an op is the main thread's own: what it runs itself, and its share on other threads of that engine.

    What it does on another engine is background, under its own name: fetching its next tile, converting the last.
    """
    return op.owner == main.owner and op.engine is main.engine and op.role is OpRole.COMPUTE


def _note_wait(to: Lint, idle: list[tuple[int, list[HtpOp]]], main: HtpOp) -> None:
    """The time before an op in which nothing was computed. What it waited for does not count as background."""
    needed = {*main.inputs, *main.after}
    for cycles, running in idle:
        to.wait += cycles
        others = {op.owner for op in running if op.role in _WORK and op.id not in needed}
        if others:
            to.wait_overlap += cycles
            for owner in others:
                to.wait_beside[owner] += cycles


def _row(node: QnnOp, cycles: int, details: tuple[ProfileEvent, ...] = ()) -> ProfileEvent:
    return ProfileEvent(_NODE, f"{label(node)} (cycles)", cycles, "cycles", details, modelled=True)


def _details(each: Lint, names: dict[int, QnnOp]) -> tuple[ProfileEvent, ...]:
    mask = sum(bit for engine, bit in _BITS if engine in each.engines)
    return (
        ProfileEvent(_WAIT, "Wait (Scheduler) time", each.wait, "cycles", modelled=True),
        _overlap(_OVERLAP, "Overlap time", each.overlap, _BACKGROUND, each.beside, names),
        _overlap(
            _WAIT_OVERLAP, "Overlap (wait) time", each.wait_overlap, _WAIT_BACKGROUND, each.wait_beside, names
        ),
        ProfileEvent(_RESOURCES, "Resources", mask, "none", modelled=True, text=each.resources),
    )


def _overlap(
    number: int, name: str, cycles: int, background: int, beside: dict[int, int], names: dict[int, QnnOp]
) -> ProfileEvent:
    longest = sorted(beside, key=lambda owner: (-beside[owner], owner))[:MOST_NAMES]
    rows = tuple(
        ProfileEvent(background, label(names[owner]), owner, "none", modelled=True, text=label(names[owner]))
        for owner in longest
    )
    return ProfileEvent(number, name, cycles, "cycles", rows, modelled=True)


# Linting data as a Chrome trace: the main thread op by op, its waits, and what ran in the background.


_MAIN_THREAD, _BACKGROUND_THREAD = 1, 2


def lint_to_chrome(event: ProfileEvent, graph: str) -> dict[str, Any]:
    """The trace of one critical-path event. Times are cycles, though viewers label them as microseconds."""
    events: list[dict[str, Any]] = [metadata("process_name", 0, 0, graph or "graph")]
    events += [
        metadata("thread_name", 0, _MAIN_THREAD, "Main thread"),
        metadata("thread_name", 0, _BACKGROUND_THREAD, "Background"),
    ]
    at = 0
    for row in event.events:
        parts = {part.type: part for part in row.events}
        wait = parts[_WAIT].value if _WAIT in parts else 0
        name = row.name.removesuffix(" (cycles)")
        if wait:
            events.append(_span(f"Wait: {name}", _MAIN_THREAD, at, wait, {}))
            events += _background_span(parts.get(_WAIT_OVERLAP), at)
            at += wait
        if row.value:
            used = parts[_RESOURCES].text if _RESOURCES in parts else ""
            events.append(_span(name, _MAIN_THREAD, at, row.value, {"Resources": used}))
            events += _background_span(parts.get(_OVERLAP), at)
            at += row.value
    return {"header": header("OP_TRACE", "1.1.0"), "otherData": {"times": "modelled"}, "traceEvents": events}


def _background_span(overlap: ProfileEvent | None, at: int) -> list[dict[str, Any]]:
    if overlap is None or not overlap.value:
        return []
    names = [name.name for name in overlap.events]
    return [_span(", ".join(names), _BACKGROUND_THREAD, at, overlap.value, {"Ops": names})]


def _span(name: str, tid: int, at: int, cycles: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "cat": "lint", "name": name, "pid": 0, "tid": tid, "ts": at, "dur": cycles, "args": args}
