"""Every op on the chip as a Chrome trace: cores, threads, memory, flows and, at the bottom, the run itself.

Times are cycles, rebased to begin near 0; viewers label them as microseconds. Ops are modelled. If a run made way
for another, the ops behind are drawn later by that much.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from openhtp.records.profile import RunTimes
from openhtp.records.schematic import SYSTEM, ChipEngine, HtpOp, OpRole, QnnOp, Schematic
from openhtp.report.dominant import dominant_path
from openhtp.report.profile_rows import Lanes, header
from openhtp.report.runtrace import DeviceSpan, computing_ns, modelled_time, run_spans, yield_spans

Json = dict[str, Any]

NOT_EXECUTED = 1
_FIRST_TID = {ChipEngine.DMA: 256, ChipEngine.HVX: 512, ChipEngine.HMX: 768, ChipEngine.NONE: 1024}
_FIRST_NODE_PID = 1_000
_RUNTRACES, _YIELDS = 500, 600  # pids of these groups, one for each core
_FLAGS = {
    OpRole.READ: ("dma",),
    OpRole.WRITE: ("dma",),
    OpRole.SET: ("dma_set",),
    OpRole.WAIT: ("dma_wait",),
    OpRole.SYNC: ("sync",),
    OpRole.COMPUTE: (),
    OpRole.CONSTANT: (),
}
_COUNTERS = ("VTCM read", "VTCM write", "DRAM read", "DRAM write")
_DESCRIPTIONS = {
    "DramToTcm": "Loads data from DRAM into VTCM.",
    "TcmToDram": "Writes data from VTCM to DRAM.",
    "DmaCheckpointSet": "Says that data for a later op has been written.",
    "DmaCheckpointWait": "Waits for a DmaCheckpointSet.",
    "Sync": "Puts HVX ops that depend on each other in order.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """What a trace shows beside the ops."""

    input_output_flows: bool = False
    sequencer_flows: bool = False
    runtrace: bool = True
    memory: bool = True
    traceback: bool = True


@dataclass(slots=True)
class _Timeline:
    """Ops where they are drawn: moved by what a run had to wait for."""

    schematic: Schematic
    origin: int
    shifts: list[tuple[frozenset[str], int]] = field(default_factory=list)
    # Cycles that a nanosecond of the device is drawn as.
    scale: float = 0.0

    def shift(self, op: HtpOp, name: str) -> int:
        return self.origin + sum(cycles for names, cycles in self.shifts if name in names)


def optrace_to_chrome(
    schematic: Schematic,
    run: RunTimes | None,
    steps: Sequence[Sequence[str]] = (),
    options: TraceOptions | None = None,
) -> Json:
    """The trace of one run. ``steps`` names the nodes behind each step of the device, to place its pauses."""
    options = options or TraceOptions()
    line = _timeline(schematic, run, steps)
    nodes = schematic.by_number
    starts = {op.id: op.start + line.shift(op, nodes[op.owner].name) for op in schematic.executed}
    events: list[Json] = []
    places: dict[int, tuple[int, int]] = {}
    events += _ops(schematic, starts, places, options)
    events += _constants(schematic, options)
    if options.memory:
        events += _memory(schematic, starts)
    if options.input_output_flows:
        events += _input_output_flows(schematic, starts, places)
    if options.sequencer_flows:
        events += _sequencer_flows(schematic, starts, places)
    if options.runtrace and run is not None:
        events += _run_events(schematic, run, line)
    return {
        "header": header("OP_TRACE", "1.1.0"),
        "otherData": {
            "producer": "openhtp",
            "unit": "cycles",
            "ops": f"modelled for {schematic.soc} at {schematic.clock_hz / 1e6:.0f} MHz",
            "runtraces": "measured on this computer, drawn to the scale of the modelled ops",
        },
        "traceEvents": events,
    }


def _timeline(schematic: Schematic, run: RunTimes | None, steps: Sequence[Sequence[str]]) -> _Timeline:
    first = min((op.start for op in schematic.executed), default=0)
    if run is None:
        return _Timeline(schematic, -first)
    scale = schematic.cycles / computing_ns(run)
    acquired = round((run.started_ns - run.received_ns) * scale)
    line = _Timeline(schematic, acquired - first, scale=scale)
    for pause in run.pauses:
        later = {name for step in steps[pause.step % max(1, len(steps)) :] for name in step}
        gap = round(max(0, pause.granted_ns - pause.released_ns) * scale)
        line.shifts.append((frozenset(later), gap))
    return line


def _ops(
    schematic: Schematic, starts: dict[int, int], places: dict[int, tuple[int, int]], options: TraceOptions
) -> Iterator[Json]:
    """Every op twice: in the overview of its core, and with its node."""
    nodes, lanes = schematic.by_number, Lanes()
    dominant = dominant_cycles(schematic)
    threads: dict[tuple[int, int], str] = {}
    shown: set[int] = set()
    for op in sorted(schematic.executed, key=lambda op: (starts[op.id], op.serial)):
        node, start = nodes[op.owner], starts[op.id]
        lane = lanes.place((op.core, op.engine, op.thread), start, start + op.cycles)
        tid = _FIRST_TID[op.engine] + op.thread + 32 * lane
        places[op.id] = (op.core, tid)
        args = _op_args(op, node, options)
        args |= {
            "Start Cycle": op.start,
            "Duration (cycles)": op.cycles,
            "Dominant Path Cycles": dominant.get(op.id, 0),
        }
        event = {"ph": "X", "cat": "op", "name": op.name, "tid": tid, "ts": start, "dur": op.cycles, "args": args}
        yield {**event, "pid": op.core}
        pid = _FIRST_NODE_PID * (op.core + 1) + node.number
        yield {**event, "pid": pid}
        if (op.core, tid) not in threads:
            threads[op.core, tid] = op.engine.value or "System"
            yield _meta("thread_name", op.core, tid, f"Type: {threads[op.core, tid]}")
        if (pid, tid) not in threads:
            threads[pid, tid] = op.engine.value
            yield _meta("thread_name", pid, tid, f"Core:{op.core} Type: {op.engine.value or 'System'} Tid: {tid}")
        if pid not in shown:
            shown.add(pid)
            name = "SystemService_0" if node.number == SYSTEM else node.name
            yield {**_meta("process_name", pid, 0, f"QNN::{name}"), "opid": f"0x{node.number:x}"}
            yield _sorted(pid, node.number + 2)
    for core in sorted({op.core for op in schematic.executed}):
        yield _meta("process_name", core, 0, f"Core {core} Overview")
        yield _sorted(core, 1)


def dominant_cycles(schematic: Schematic) -> dict[int, int]:
    """For how many cycles each op had the say on its core."""
    found: dict[int, int] = defaultdict(int)
    for core in sorted({op.core for op in schematic.executed}):
        for stretch in dominant_path(op for op in schematic.executed if op.core == core):
            if stretch.op is not None:
                found[stretch.op.id] += stretch.cycles
    return found


def _op_args(op: HtpOp, node: QnnOp, options: TraceOptions) -> Json:
    uses = {ChipEngine.HVX: ("uses_hvx",), ChipEngine.HMX: ("uses_hmx",)}.get(op.engine, ())
    args: Json = {
        "ID": f"0x{op.id:016x}",
        "HTP Op Type": op.name,
        "Dims": list(op.dims),
        "Data Type": op.dtype,
        "Rank": len(op.dims),
        "Step Size": op.step_size,
        "Zero Offset": op.zero_offset,
        "Inputs Ops": [f"0x{maker:016x}" for maker in op.inputs],
        "Flags": [*_FLAGS[op.role], *uses],
        "QNN Op Type": node.type,
        "QNN Op Name": node.name,
    }
    if op.name in _DESCRIPTIONS:
        args["Description"] = _DESCRIPTIONS[op.name]
    if options.traceback and node.framework:
        args["Framework Ops"] = list(node.framework)
    return args


def _constants(schematic: Schematic, options: TraceOptions) -> Iterator[Json]:
    """What only lies there, on a lane of its own."""
    nodes, cores, dur = schematic.by_number, set[int](), 5
    for place, op in enumerate(op for op in schematic.ops if not op.executed):
        args = _op_args(op, nodes[op.owner], options)
        args.pop("Flags")
        event = {"ph": "X", "cat": "tensor", "name": op.name, "pid": op.core, "tid": NOT_EXECUTED}
        yield {**event, "ts": place * dur, "dur": dur, "args": args}
        cores.add(op.core)
    for core in sorted(cores):
        yield _meta("thread_name", core, NOT_EXECUTED, "Non Executed Tensors")


def _memory(schematic: Schematic, starts: dict[int, int]) -> Iterator[Json]:
    """Bytes that ops under way move, and bytes of VTCM that are held; core by core."""
    for core in sorted({op.core for op in schematic.executed}):
        changes: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        for op in schematic.executed:
            if op.core == core and op.cycles:
                moved = (op.vtcm_read, op.vtcm_write, op.dram_read, op.dram_write)
                for place, nbytes in enumerate(moved):
                    changes[starts[op.id]][place] += nbytes
                    changes[starts[op.id] + op.cycles][place] -= nbytes
        held = [0, 0, 0, 0]
        for at in sorted(changes):
            held = [have + change for have, change in zip(held, changes[at], strict=True)]
            for name, value in zip(_COUNTERS, held, strict=True):
                yield _counter(core, name, at, value)
        yield from _allocated(schematic, core, starts)


def _allocated(schematic: Schematic, core: int, starts: dict[int, int]) -> Iterator[Json]:
    origin = min((starts[op.id] - op.start for op in schematic.executed), default=0)
    changes: dict[int, int] = defaultdict(int)
    for region in schematic.regions:
        if region.core == core:
            changes[max(0, region.start + origin)] += region.nbytes
            changes[max(0, region.end + origin)] -= region.nbytes
    held = 0
    for at in sorted(changes):
        held += changes[at]
        yield _counter(core, "VTCM alloc", at, held)


def _input_output_flows(
    schematic: Schematic, starts: dict[int, int], places: dict[int, tuple[int, int]]
) -> Iterator[Json]:
    ops = {op.id: op for op in schematic.executed}
    number = 0
    for op in schematic.executed:
        for maker in op.inputs:
            if maker in ops and starts[maker] + ops[maker].cycles <= starts[op.id]:
                number += 1
                yield from _flow("input_output", "InputOutputFlowEvents", number, ops[maker], op, starts, places)


def _sequencer_flows(
    schematic: Schematic, starts: dict[int, int], places: dict[int, tuple[int, int]]
) -> Iterator[Json]:
    last: dict[tuple[int, int], HtpOp] = {}
    for number, op in enumerate(sorted(schematic.executed, key=lambda op: (starts[op.id], op.serial)), start=1):
        before = last.get(places[op.id])
        if before is not None:
            yield from _flow("sequencer", "SequencerFlowEvents", number, before, op, starts, places)
        last[places[op.id]] = op


def _flow(
    category: str,
    name: str,
    number: int,
    start: HtpOp,
    end: HtpOp,
    starts: dict[int, int],
    places: dict[int, tuple[int, int]],
) -> Iterator[Json]:
    """An arrow; it begins within the one op (viewers look for that) and ends where the other begins."""
    base = {"cat": category, "name": name, "id": f"{category}-{number}"}
    pid, tid = places[start.id]
    leaves = starts[start.id] + max(0, start.cycles - 1)
    yield {**base, "ph": "s", "pid": pid, "tid": tid, "ts": leaves}
    pid, tid = places[end.id]
    yield {**base, "ph": "f", "bp": "e", "pid": pid, "tid": tid, "ts": max(leaves, starts[end.id])}


def _run_events(schematic: Schematic, run: RunTimes, line: _Timeline) -> Iterator[Json]:
    """The run as the device measured it, below the ops of the core that it ran on."""
    core = next((op.core for op in schematic.executed), 0)
    for base, word, spans in ((_RUNTRACES, "Runtraces", run_spans(run)), (_YIELDS, "Yields", yield_spans(run))):
        if not spans:
            continue
        pid = base + core
        yield _meta("process_name", pid, 0, f"{schematic.graph} {word}")
        yield _sorted(pid, 1 << 30)
        yield _meta("thread_name", pid, 0, f"Core {core} {'Execs' if word == 'Runtraces' else 'Yields'}")
        for span in spans:
            yield _run_span(span, pid, line.scale, schematic.graph)


def _run_span(span: DeviceSpan, pid: int, scale: float, graph: str) -> Json:
    start, end = round(span.start_ns * scale), round(span.end_ns * scale)
    args = {"graph_name": graph, "measured_us": (span.end_ns - span.start_ns) / 1000, **modelled_time(span)}
    event = {"ph": "X", "cat": "runtrace", "name": span.name, "pid": pid, "tid": 0}
    return {**event, "ts": start, "dur": end - start, "args": args}


def _counter(core: int, name: str, at: int, value: int) -> Json:
    return {"ph": "C", "cat": "memory", "name": name, "pid": core, "tid": 0, "ts": at, "args": {"bytes": value}}


def _meta(kind: str, pid: int, tid: int, name: str) -> Json:
    return {"ph": "M", "cat": "__metadata", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _sorted(pid: int, index: int) -> Json:
    event = {"ph": "M", "cat": "__metadata", "name": "process_sort_index", "pid": pid, "tid": 0, "ts": 0}
    return {**event, "args": {"sort_index": index}}
