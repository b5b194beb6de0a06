"""Every op on the chip as a Chrome trace: cores, threads, memory, flows and, at the bottom, the run itself.

Times are cycles, rebased to begin near 0; viewers label them as microseconds. Ops are modelled. If a run made way
for another, the ops behind are drawn later by that much.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from openhtp.records.profile import RunTimes
from openhtp.records.schematic import SYSTEM, ChipEngine, HtpOp, OpRole, QnnOp, Schematic, dominant_cycles
from openhtp.report.listing import header, metadata

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
_COUNTERS = {
    "VTCM read": "vtcm_read",
    "VTCM write": "vtcm_write",
    "DRAM read": "dram_read",
    "DRAM write": "dram_write",
}
"""Bandwidths, and the bytes of an op that they are made of: it moves them evenly while it runs."""
_DESCRIPTIONS = {
    "DramToTcm": "Loads data from DRAM into VTCM.",
    "TcmToDram": "Writes data from VTCM to DRAM.",
    "DmaCheckpointSet": "Says that data for a later op has been written.",
    "DmaCheckpointWait": "Waits for a DmaCheckpointSet.",
    "Sync": "Puts HVX ops that depend on each other in order.",
    "BlockZapOp": "Fills blocks that a tensor leaves partly empty.",
    "SystemService": "Brings chunks of data into the L2 cache ahead of an op.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """What a trace shows beside the ops, by the vendor's names."""

    enable_input_output_flow_events: bool = False
    enable_sequencer_flow_events: bool = False
    runtrace: bool = True
    memory_info: bool = True
    traceback: bool = True


def optrace_to_chrome(
    schematic: Schematic,
    run: RunTimes | None,
    steps: Sequence[Sequence[str]] = (),
    options: TraceOptions | None = None,
) -> Json:
    """The trace of one run. ``steps`` names the nodes behind each step of the device, to place its pauses."""
    options = options or TraceOptions()
    # Cycles that a nanosecond of the device is drawn as.
    scale = 0.0 if run is None else schematic.cycles / computing_ns(run)
    starts = _starts(schematic, run, steps, scale)
    events: list[Json] = []
    places: dict[int, tuple[int, int]] = {}
    events += _ops(schematic, starts, places, options)
    events += _constants(schematic, options)
    if options.memory_info:
        events += _memory(schematic, starts)
    if options.enable_input_output_flow_events:
        events += _input_output_flows(schematic, starts, places)
    if options.enable_sequencer_flow_events:
        events += _sequencer_flows(schematic, starts, places)
    if options.runtrace and run is not None:
        events += _run_events(schematic, run, scale)
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


def _starts(
    schematic: Schematic, run: RunTimes | None, steps: Sequence[Sequence[str]], scale: float
) -> dict[int, int]:
    """Where each op is drawn: moved by the times for which the run had to wait."""
    origin = -min((op.start for op in schematic.executed), default=0)
    gaps: list[tuple[set[int], int]] = []
    if run is not None:
        origin += round((run.started_ns - run.received_ns) * scale)
        for pause in run.pauses:
            later = _ops_behind(schematic, steps, pause.step % max(1, len(steps)))
            gaps.append((later, round(max(0, pause.granted_ns - pause.released_ns) * scale)))
    return {
        op.id: op.start + origin + sum(gap for later, gap in gaps if op.id in later) for op in schematic.executed
    }


def _ops_behind(schematic: Schematic, steps: Sequence[Sequence[str]], step: int) -> set[int]:
    """The ops that begin with this step or later. A node that the step divides has its ops divided alike."""
    of_all = Counter(name for names in steps for name in names)
    of_earlier = Counter(name for names in steps[:step] for name in names)
    by_node: dict[str, list[HtpOp]] = {}
    for op in sorted(schematic.executed, key=lambda op: (op.start, op.serial)):
        by_node.setdefault(schematic.by_number[op.owner].name, []).append(op)
    return {
        op.id
        for name, ops in by_node.items()
        if name in of_all
        for index, op in enumerate(ops)
        if index * of_all[name] >= len(ops) * of_earlier[name]
    }


def _ops(
    schematic: Schematic, starts: dict[int, int], places: dict[int, tuple[int, int]], options: TraceOptions
) -> Iterator[Json]:
    """Every op twice: in the overview of its core, and with its node."""
    nodes, lanes = schematic.by_number, _OpLanes()
    dominant = dominant_cycles(schematic)
    threads: set[tuple[int, int]] = set()
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
        unit = op.engine.value or "System"
        if (op.core, tid) not in threads:
            yield metadata("thread_name", op.core, tid, f"Type: {unit}")
        if (pid, tid) not in threads:
            yield metadata("thread_name", pid, tid, f"Core:{op.core} Type: {unit} Tid: {tid}")
        threads |= {(op.core, tid), (pid, tid)}
        if pid not in shown:
            shown.add(pid)
            name = "SystemService_0" if node.number == SYSTEM else node.name
            yield {**metadata("process_name", pid, 0, f"QNN::{name}"), "opid": f"0x{node.number:x}"}
            yield _sorted(pid, node.number + 2)
    for core in sorted({op.core for op in schematic.executed}):
        yield metadata("process_name", core, 0, f"Core {core} Overview")
        yield _sorted(core, 1)


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
    """Constants, which take no part in a run, on a lane of their own."""
    nodes, cores, dur = schematic.by_number, set[int](), 5
    for number, op in enumerate(op for op in schematic.ops if not op.executed):
        args = _op_args(op, nodes[op.owner], options)
        args.pop("Flags")
        event = {"ph": "X", "cat": "tensor", "name": op.name, "pid": op.core, "tid": NOT_EXECUTED}
        yield {**event, "ts": number * dur, "dur": dur, "args": args}
        cores.add(op.core)
    for core in sorted(cores):
        yield metadata("thread_name", core, NOT_EXECUTED, "Non Executed Tensors")


def _memory(schematic: Schematic, starts: dict[int, int]) -> Iterator[Json]:
    """Bytes that move in each cycle, and bytes of VTCM that are held; core by core."""
    for core in sorted({op.core for op in schematic.executed}):
        begins, ends = defaultdict[int, list[HtpOp]](list), defaultdict[int, list[HtpOp]](list)
        for op in schematic.executed:
            if op.core == core and op.cycles:
                begins[starts[op.id]].append(op)
                ends[starts[op.id] + op.cycles].append(op)
        running: dict[int, HtpOp] = {}
        for at in sorted({*begins, *ends}):
            for op in ends[at]:
                del running[op.id]
            running.update({op.id: op for op in begins[at]})
            for name, moved in _COUNTERS.items():
                rate = sum(getattr(op, moved) / op.cycles for op in running.values())
                yield _counter(core, name, at, {"bytes/cycle": round(rate, 3)})
        yield from _allocated(schematic, core, starts)


def _allocated(schematic: Schematic, core: int, starts: dict[int, int]) -> Iterator[Json]:
    origin = min((starts[op.id] - op.start for op in schematic.executed), default=0)
    changes: dict[int, int] = defaultdict(int)
    for region in schematic.regions:
        if region.core == core:
            changes[max(0, region.start + origin)] += region.nbytes
            changes[max(0, region.end + origin)] -= region.nbytes
    allocated = 0
    for at in sorted(changes):
        allocated += changes[at]
        yield _counter(core, "VTCM alloc", at, {"bytes": allocated})


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
    """The order on each thread, and across threads what syncs and checkpoints hold back."""
    ops = {op.id: op for op in schematic.executed}
    last: dict[tuple[int, int], HtpOp] = {}
    numbers = itertools.count(1)
    for op in sorted(schematic.executed, key=lambda op: (starts[op.id], op.serial)):
        before = last.get(places[op.id])
        earlier = [] if before is None else [before]
        held_by = [ops[each] for each in op.after if each in ops]
        earlier += [each for each in held_by if each is not before and each.core == op.core]
        for each in earlier:
            if starts[each.id] <= starts[op.id] + op.cycles:
                yield from _flow("sequencer", "SequencerFlowEvents", next(numbers), each, op, starts, places)
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
    """An arrow. It begins inside one op, where viewers look for it, and ends where the other op begins."""
    base = {"cat": category, "name": name, "id": f"{category}-{number}"}
    pid, tid = places[start.id]
    leaves = starts[start.id] + max(0, start.cycles - 1)
    yield {**base, "ph": "s", "pid": pid, "tid": tid, "ts": leaves}
    pid, tid = places[end.id]
    yield {**base, "ph": "f", "bp": "e", "pid": pid, "tid": tid, "ts": max(leaves, starts[end.id])}


def _run_events(schematic: Schematic, run: RunTimes, scale: float) -> Iterator[Json]:
    """The run as the device measured it, below the ops of each core that it ran on."""
    kinds = ((_RUNTRACES, "Runtraces", run_spans(run)), (_YIELDS, "Yields", yield_spans(run)))
    for core, (base, word, spans) in itertools.product(_cores_of(schematic), kinds):
        if not spans:
            continue
        pid = base + core
        yield metadata("process_name", pid, 0, f"{schematic.graph} {word}")
        yield _sorted(pid, 1 << 30)
        yield metadata("thread_name", pid, 0, f"Core {core} {'Execs' if word == 'Runtraces' else 'Yields'}")
        for span in spans:
            yield _run_span(span, pid, scale, schematic.graph)


def _cores_of(schematic: Schematic) -> list[int]:
    return sorted({op.core for op in schematic.executed}) or [0]


def _run_span(span: DeviceSpan, pid: int, scale: float, graph: str) -> Json:
    start, end = round(span.start_ns * scale), round(span.end_ns * scale)
    args = {"graph_name": graph, "measured_us": (span.end_ns - span.start_ns) / 1000, **modelled_time(span)}
    event = {"ph": "X", "cat": "runtrace", "name": span.name, "pid": pid, "tid": 0}
    return {**event, "ts": start, "dur": end - start, "args": args}


def _counter(core: int, name: str, at: int, value: dict[str, float]) -> Json:
    return {"ph": "C", "cat": "memory", "name": name, "pid": core, "tid": 0, "ts": at, "args": value}


def _sorted(pid: int, index: int) -> Json:
    event = {"ph": "M", "cat": "__metadata", "name": "process_sort_index", "pid": pid, "tid": 0, "ts": 0}
    return {**event, "args": {"sort_index": index}}


# When executions were where: acquiring, powering up, running, making way. Measured by the device.
#
# The runtrace file counts ticks of 19.2 MHz, as the chip's timer does. On the op timeline, which is modelled, the
# same spans are drawn to its scale: the time that a run computed becomes the cycles that it is modelled to take.


TICK_HZ = 19_200_000


@dataclass(frozen=True, slots=True)
class DeviceSpan:
    """A stretch of device time, in nanoseconds from when the execution was received."""

    name: str
    start_ns: int
    end_ns: int
    # How long the chip would take for it, where that is modelled.
    modelled_ns: int | None = None


def run_spans(run: RunTimes) -> list[DeviceSpan]:
    """The parts of an execution, the whole first."""
    started, finished = run.started_ns - run.received_ns, run.finished_ns - run.received_ns
    return [
        DeviceSpan("QNN DSP Execute", 0, finished),
        DeviceSpan("VTCM Acquire", 0, started),
        DeviceSpan(
            "Resource Power On", started, started, run.power_up_ns
        ),  # the emulated chip has nothing to power up
        DeviceSpan("Graph Execute", started, finished),
    ]


def yield_spans(run: RunTimes) -> list[DeviceSpan]:
    """Each time it made way: VTCM saved, waited for, restored."""
    spans = []
    for pause in run.pauses:
        times = (pause.asked_ns, pause.released_ns, pause.granted_ns, pause.restored_ns)
        asked, released, granted, restored = accumulate((time - run.received_ns for time in times), max)
        spans += [
            DeviceSpan("Save VTCM", asked, released),
            DeviceSpan("Re-acquire VTCM", released, granted),
            DeviceSpan("Restore VTCM", granted, restored),
        ]
    return spans


def computing_ns(run: RunTimes) -> int:
    """How long it ran, without the times in which it had made way."""
    paused = sum(max(0, pause.granted_ns - pause.released_ns) for pause in run.pauses)
    return max(1, run.finished_ns - run.started_ns - paused)


def runs_to_runtrace(schematic: Schematic, runs: Sequence[RunTimes]) -> dict[str, Any]:
    """The runtrace file: all runs, in ticks from when the first was received."""
    runs = sorted(runs, key=lambda run: run.received_ns)
    events = [metadata("process_name", 0, 0, f"{schematic.graph} Runtraces")]
    origin = runs[0].received_ns if runs else 0
    lanes = _OpLanes()
    # Executions that were queued at the same time stand side by side.
    placed = [(run, lanes.place(0, run.received_ns, run.finished_ns)) for run in runs]
    for core, lane in itertools.product(_cores_of(schematic), range(lanes.used(0))):
        tid = core * lanes.used(0) + lane
        events.append(metadata("thread_name", 0, tid, f"Core {core} Execs" + (f" ({lane + 1})" if lane else "")))
        for run in (run for run, at in placed if at == lane):
            base = run.received_ns - origin
            events += [_tick_event(schematic, span, base, run, tid) for span in run_spans(run)]
    return {"header": header("RUN_TRACE", "1.1.0"), "otherData": {"times": "measured"}, "traceEvents": events}


def _tick_event(schematic: Schematic, span: DeviceSpan, base_ns: int, run: RunTimes, tid: int) -> dict[str, Any]:
    start, end = ((base_ns + at) * TICK_HZ // 10**9 for at in (span.start_ns, span.end_ns))
    us = (span.end_ns - span.start_ns) / 1000
    scale = schematic.cycles / computing_ns(run)
    cycles = [round((base_ns + at) * scale) for at in (span.start_ns, span.end_ns)]
    return {
        "ph": "X",
        "cat": "runtrace",
        "name": span.name,
        "pid": 0,
        "tid": tid,
        "ts": start,
        "dur": end - start,
        "args": {
            **modelled_time(span),
            "graph_name": schematic.graph,
            "stat_start_ticks": start,
            "stat_end_ticks": end,
            "stat_start_cycles": cycles[0],
            "stat_end_cycles": cycles[1],
            "summary_htp_frequency_ghz": scale,
            "summary_inf/s": 1e6 / us if us else None,
            "summary_time_us": us,
        },
    }


def modelled_time(span: DeviceSpan) -> dict[str, float]:
    """The modelled time of a span, for its arguments."""
    return {} if span.modelled_ns is None else {"modelled_us": span.modelled_ns / 1000}


class _OpLanes:
    """Lanes on which no span overlaps another, as viewers would draw them into each other.

    Spans must come by their begin. Each ``thing`` (a thread, a core) has lanes of its own.
    """

    def __init__(self) -> None:
        self._free: dict[object, list[int]] = defaultdict(list)

    def place(self, thing: object, start: int, end: int) -> int:
        """Take a thing's first lane that is free from ``start`` on, until ``end``; return its number."""
        lanes = self._free[thing]
        for lane, free in enumerate(lanes):
            if free <= start:
                lanes[lane] = end
                return lane
        lanes.append(end)
        return len(lanes) - 1

    def used(self, thing: object) -> int:
        """How many lanes a thing has."""
        return len(self._free[thing])
