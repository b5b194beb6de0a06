"""The analysis summary: what each op, type of op, node and thread costs, and which ops decide the time (QHAS).

The arithmetic is the vendor's as far as its published files tell:

* ``timeline_cycles`` of a core is from the first begin to the last end over all its threads;
* ``utilization`` of a thread is of the core's timeline, not of its own;
* idle cycles are those in which nothing runs, and percentages of the dominant path are of the rest;
* ``percent_active_cycles`` is of the cycles of all threads together.

Cycles, bytes and times are modelled for the chip; ``measured_us`` is what the runs took on the emulated one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from openhtp.records.profile import RunTimes
from openhtp.records.schematic import (
    FIRST_NODE,
    ChipEngine,
    HtpOp,
    OpRole,
    Schematic,
    Stretch,
    dominant_cycles,
    dominant_path,
)
from openhtp.report.listing import header
from openhtp.report.page import CHARTS_AND_TABLES, filled_page, template_named

Json = dict[str, Any]
_BYTES = ("dram_read", "dram_write", "vtcm_read", "vtcm_write")
IDLE = "Accumulated Idle"


def schematic_to_qhas(schematic: Schematic, runs: Sequence[RunTimes]) -> Json:
    """The summary as the JSON of the vendor's tool has it."""
    ops = schematic.executed
    cores = sorted({op.core for op in ops})
    paths = {core: dominant_path(op for op in ops if op.core == core) for core in cores}
    tables = _Tables(schematic, ops, paths)
    sections = {
        "htp_overall_summary": [tables.overall(core, runs) for core in cores],
        "qnn_op_types": tables.qnn_types(),
        "qnn_op_instances_nodes": tables.qnn_instances(),
        "htp_op_types": tables.htp_types(),
        "htp_op_instances": tables.htp_instances(),
        **{f"dominant_path_htp_{core}": tables.dominant(core) for core in cores},
    }
    return {
        "header": header("QHAS", "1.0.0"),
        "model_id": schematic.graph,
        "source": {
            "soc": schematic.soc,
            "cycles": "modelled",
            "bytes": "modelled",
            "time_us": "modelled",
            "measured_us": "measured on this computer",
            "clock_mhz": schematic.clock_hz / 1e6,
        },
        "data": {name: {"data": rows} for name, rows in sections.items()},
    }


class _Tables:
    """What the sections share: whose ops, and how long each had the say."""

    def __init__(self, schematic: Schematic, ops: Sequence[HtpOp], paths: dict[int, list[Stretch]]) -> None:
        self._schematic = schematic
        self._ops = ops
        self._paths = paths
        self._nodes = schematic.by_number
        self._active = sum(op.cycles for op in ops)
        self._dominant = dominant_cycles(schematic)
        self._busy = {core: sum(s.cycles for s in path if s.op is not None) for core, path in paths.items()}

    def overall(self, core: int, runs: Sequence[RunTimes]) -> Json:
        """One core."""
        ops, path = [op for op in self._ops if op.core == core], self._paths[core]
        timeline = sum(stretch.cycles for stretch in path)
        idle = timeline - self._busy[core]
        graph_us = timeline * 10**6 // self._schematic.clock_hz
        us = graph_us + self._schematic.launch_cycles * 10**6 // self._schematic.clock_hz
        totals = _summed(ops)
        nodes = {op.owner for op in ops if op.owner >= FIRST_NODE}
        return {
            "htp": core,
            "htp_resources": {"data": self._resources(ops, timeline)},
            "percent_idle": _percent(idle, timeline),
            "percent_utilization": 100.0 - _percent(idle, timeline),
            "time_us": us,
            "graph_execute_us": graph_us,
            "measured_us": sum(run.finished_ns - run.received_ns for run in runs) // max(1, 1000 * len(runs)),
            "inf_per_s": 1e6 / us if us else 0.0,
            "timeline_cycles": timeline,
            **{f"total_{name}": totals[name] for name in ("dram_read", "dram_write")},
            "total_dram": totals["dram_read"] + totals["dram_write"],
            "peak_vtcm_alloc": self._peak(core),
            **{f"total_{name}": totals[name] for name in ("vtcm_read", "vtcm_write")},
            "total_vtcm": totals["vtcm_read"] + totals["vtcm_write"],
            "unique_qnn_ops": len({self._nodes[number].type for number in nodes}),
            "qnn_nodes": len(nodes),
            "unique_htp_ops": len({op.name for op in ops}),
            "htp_nodes": len(ops),
        }

    def qnn_types(self) -> list[Json]:
        """By type of the graph's nodes."""
        return self._grouped(lambda op: self._nodes[op.owner].type, "op")

    def qnn_instances(self) -> list[Json]:
        """By node of the graph; those that were fused away say into which."""
        rows = self._grouped(lambda op: op.owner, "qnn_op")
        for row in rows:
            node = self._nodes[row.pop("qnn_op")]
            row.update({"qnn_op": node.name or "SystemService_0", "qnn_op_type": node.type})
            row["framework_ops"] = list(node.framework)
            row["fused"] = [each.name for each in self._schematic.nodes if each.into == node.number]
        first = ("qnn_op", "qnn_op_type")
        return [{**{key: row[key] for key in first}, **row} for row in rows]

    def htp_types(self) -> list[Json]:
        """By type of op on the chip."""
        rows = self._grouped(lambda op: op.name, "op")
        for row in rows:
            row["instances"] = row.pop("num_htp_ops")
            row["format_change"] = row["reference_op"] = False
        return rows

    def htp_instances(self) -> list[Json]:
        """Every op on the chip, by thread and time."""
        ordered = sorted(self._ops, key=lambda op: (op.core, op.engine.value, op.thread, op.start, op.serial))
        return [self._instance(op) for op in ordered]

    def dominant(self, core: int) -> list[Json]:
        """Which op had the say when. An op that had it several times has a row each time."""
        rows = []
        for stretch in self._paths[core]:
            op = stretch.op
            rows.append(
                {
                    "op_id": "0x0" if op is None else f"0x{op.id:x}",
                    "htp_op": IDLE if op is None else op.name,
                    "qnn_op": "" if op is None else self._nodes[op.owner].name,
                    "start_cycle": stretch.start,
                    "end_cycle": stretch.end,
                    "partial": op is not None and stretch.cycles < op.cycles,
                    "dp_cycles": stretch.cycles,
                    "cycles": stretch.cycles if op is None else op.cycles,
                }
            )
        return rows

    def _grouped(self, key: Any, name: str) -> list[Json]:
        groups: dict[Any, list[HtpOp]] = defaultdict(list)
        for op in self._ops:
            groups[key(op)].append(op)
        rows = [{name: each, **self._shares(ops), **_summed(ops)} for each, ops in groups.items()]
        return sorted(rows, key=lambda row: -row["cycles"])

    def _shares(self, ops: Sequence[HtpOp]) -> Json:
        cycles = sum(op.cycles for op in ops)
        row: Json = {"cycles": cycles, "percent_active_cycles": _percent(cycles, self._active)}
        for core in self._paths:
            dominant = sum(self._dominant[op.id] for op in ops if op.core == core)
            row[f"num_dominant_path_cycles_htp_{core}"] = dominant
            row[f"percent_dominant_path_cycles_htp_{core}"] = _percent(dominant, self._busy[core])
        row["num_htp_ops"] = len(ops)
        return row

    def _instance(self, op: HtpOp) -> Json:
        node, dominant = self._nodes[op.owner], self._dominant[op.id]
        return {
            "htp": op.core,
            "tid": op.thread,
            "op_id": f"0x{op.id:x}",
            "htp_op": op.name,
            "qnn_op": node.name or "SystemService_0",
            "qnn_op_type": node.type,
            "dtype": op.dtype,
            "rank": len(op.dims),
            "step_size": op.step_size,
            "zero_offset": op.zero_offset,
            "dims": list(op.dims),
            "input_nodes": [f"0x{maker:x}" for maker in op.inputs],
            "start_cycle": op.start,
            "cycles": op.cycles,
            "num_dominant_path_cycles": dominant,
            "percent_dominant_path_cycles": _percent(dominant, self._busy[op.core]),
            "fmt_change": False,
            "ref_op": False,
            "hmx": op.engine is ChipEngine.HMX,
            "hvx": op.engine is ChipEngine.HVX,
            "dma_wait": op.role is OpRole.WAIT,
            "dma_set": op.role is OpRole.SET,
            "dma": op.role in (OpRole.READ, OpRole.WRITE),
            "sync": op.role is OpRole.SYNC,
            **{name: getattr(op, name) for name in _BYTES},
        }

    def _resources(self, ops: Sequence[HtpOp], timeline: int) -> list[Json]:
        threads: dict[tuple[str, int], list[HtpOp]] = defaultdict(list)
        for op in ops:
            threads[op.engine.value or "UNK", op.thread].append(op)
        rows = []
        for (engine, thread), on_thread in sorted(threads.items()):
            used, start = sum(op.cycles for op in on_thread), min(op.start for op in on_thread)
            end = max(op.end for op in on_thread)
            rows.append(
                {
                    "type": engine,
                    "tid": thread,
                    "start_cycle": start,
                    "end_cycle": end,
                    "timeline_cycles": end - start,
                    "cycles_used": used,
                    "utilization": _percent(used, timeline),
                    **_summed(on_thread),
                }
            )
        return rows

    def _peak(self, core: int) -> int:
        """The most bytes of VTCM in use at once."""
        changes: dict[int, int] = defaultdict(int)
        for region in self._schematic.regions:
            if region.core == core:
                changes[region.start] += region.nbytes
                changes[region.end] -= region.nbytes
        return max(accumulate(changes[at] for at in sorted(changes)), default=0)


def _summed(ops: Sequence[HtpOp]) -> dict[str, int]:
    return {name: sum(getattr(op, name) for op in ops) for name in _BYTES}


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 0.0


# The summary as a page: sections that unfold, tables to sort and filter, a pie for any column.


_TITLES = {
    "qnn_op_types": "QNN Op Types",
    "qnn_op_instances_nodes": "QNN Op Instances (Nodes)",
    "htp_op_types": "HTP Op Types",
    "htp_op_instances": "HTP Op Instances",
}
_SUMMARY = "htp_overall_summary"
_MOST_DRAWN = 20_000


def qhas_to_html(qhas: dict[str, Any], schematic: Schematic) -> str:
    """Return the page. ``schematic`` is what the summary was made from; the timeline shows its ops."""
    data = qhas["data"]
    overall = data[_SUMMARY]["data"]
    sections = [
        {
            "id": _SUMMARY,
            "title": "HTP Overall Summary",
            "rows": [{key: value for key, value in row.items() if key != "htp_resources"} for row in overall],
        },
        {
            "id": "htp_resources",
            "title": "HTP Resources",
            "rows": [
                {"htp": row["htp"], **resource} for row in overall for resource in row["htp_resources"]["data"]
            ],
        },
        *({"id": name, "title": title, "rows": data[name]["data"]} for name, title in _TITLES.items()),
    ]
    for name, section in data.items():
        if name.startswith("dominant_path_htp_"):
            core = name.removeprefix("dominant_path_htp_")
            sections.append({"id": name, "title": f"Dominant Path (HTP {core})", "rows": section["data"]})
    document = {
        "graph": qhas["model_id"],
        "source": qhas["source"],
        "overall": sections[0]["rows"],
        "sections": sections,
        "timeline": _timeline(schematic),
        "vtcm": [
            [region.start, region.end, region.offset, region.nbytes, region.tensor, region.core]
            for region in schematic.regions[:_MOST_DRAWN]
        ],
    }
    return filled_page(template_named("qhas.html"), document, CHARTS_AND_TABLES)


def _timeline(schematic: Schematic) -> dict[str, Any]:
    """Threads as lanes, and the longest ops on them as columns of numbers."""
    nodes = schematic.by_number
    ops = sorted((op for op in schematic.executed if op.cycles), key=lambda op: -op.cycles)[:_MOST_DRAWN]
    order = {"HMX": 0, "HVX": 1, "DMA": 2, "": 3}
    keys = sorted({(op.core, order[op.engine.value], op.thread, op.engine.value) for op in ops})
    lanes = {(core, engine, thread): lane for lane, (core, _, thread, engine) in enumerate(keys)}
    types = sorted({nodes[op.owner].type for op in ops})
    several = len({core for core, *_ in keys}) > 1
    return {
        "lanes": [
            (f"Core {core} " if several else "") + (f"{engine}{thread}" if engine == "HVX" else engine or "System")
            for core, _, thread, engine in keys
        ],
        "types": types,
        "ops": [
            [
                lanes[op.core, op.engine.value, op.thread],
                op.start,
                op.end,
                types.index(nodes[op.owner].type),
                op.name,
                nodes[op.owner].name,
            ]
            for op in ops
        ],
    }


# The JSON schema of the summary, for programs that check files before they read them.


_WHOLE: Json = {"type": "integer", "minimum": 0}
_SHARE: Json = {"type": "number", "minimum": 0}
_TEXT: Json = {"type": "string"}
_FLAG: Json = {"type": "boolean"}
_TEXTS: Json = {"type": "array", "items": _TEXT}
_VERSION: Json = {"type": "object", "properties": dict.fromkeys(("major", "minor", "patch"), _WHOLE)}
_MOVED: Json = dict.fromkeys(_BYTES, _WHOLE)
_COUNTED: Json = {"cycles": _WHOLE, "percent_active_cycles": _SHARE, **_MOVED}
_BY_CORE: Json = {
    r"^num_dominant_path_cycles_htp_\d+$": _WHOLE,
    r"^percent_dominant_path_cycles_htp_\d+$": _SHARE,
}
_RESOURCE: Json = {
    "type": {"enum": ["HMX", "HVX", "DMA", "UNK"]},
    **dict.fromkeys(("tid", "start_cycle", "end_cycle", "timeline_cycles", "cycles_used"), _WHOLE),
    "utilization": _SHARE,
    **_MOVED,
}
_TOTALS = ("dram_read", "dram_write", "dram", "vtcm_read", "vtcm_write", "vtcm")
_COUNTS = ("unique_qnn_ops", "qnn_nodes", "unique_htp_ops", "htp_nodes", "time_us", "graph_execute_us")


def _section(row: Json, by_core: Json | None = None) -> Json:
    items: Json = {"type": "object", "properties": row, "required": list(row), "additionalProperties": False}
    if by_core:
        items["patternProperties"] = by_core
    rows = {"type": "array", "items": items}
    return {"type": "object", "properties": {"data": rows}, "required": ["data"], "additionalProperties": False}


_OVERALL: Json = {
    "htp": _WHOLE,
    "htp_resources": _section(_RESOURCE),
    **dict.fromkeys(("percent_idle", "percent_utilization", "inf_per_s"), _SHARE),
    **dict.fromkeys(_COUNTS, _WHOLE),
    "measured_us": _WHOLE,
    "timeline_cycles": _WHOLE,
    "peak_vtcm_alloc": _WHOLE,
    **{f"total_{name}": _WHOLE for name in _TOTALS},
}
_INSTANCE: Json = {
    **dict.fromkeys(("htp", "tid", "rank", "start_cycle", "cycles", "num_dominant_path_cycles"), _WHOLE),
    **dict.fromkeys(("op_id", "htp_op", "qnn_op", "qnn_op_type", "dtype"), _TEXT),
    "step_size": {"type": "number"},
    "zero_offset": {"type": "integer"},
    "dims": {"type": "array", "items": {"type": "integer"}},
    "input_nodes": _TEXTS,
    "percent_dominant_path_cycles": _SHARE,
    **dict.fromkeys(("fmt_change", "ref_op", "hmx", "hvx", "dma_wait", "dma_set", "dma", "sync"), _FLAG),
    **_MOVED,
}
_DOMINANT: Json = {
    **dict.fromkeys(("op_id", "htp_op", "qnn_op"), _TEXT),
    **dict.fromkeys(("start_cycle", "end_cycle", "dp_cycles", "cycles"), _WHOLE),
    "partial": _FLAG,
}
_TYPE: Json = {"op": _TEXT, "num_htp_ops": _WHOLE, **_COUNTED}
_NODE: Json = {
    **dict.fromkeys(("qnn_op", "qnn_op_type"), _TEXT),
    **dict.fromkeys(("framework_ops", "fused"), _TEXTS),
    "num_htp_ops": _WHOLE,
    **_COUNTED,
}
_HTP_TYPE: Json = {"op": _TEXT, "instances": _WHOLE, "format_change": _FLAG, "reference_op": _FLAG, **_COUNTED}


def qhas_schema() -> Json:
    """The schema."""
    sections = {
        "htp_overall_summary": _section(_OVERALL),
        "qnn_op_types": _section(_TYPE, _BY_CORE),
        "qnn_op_instances_nodes": _section(_NODE, _BY_CORE),
        "htp_op_types": _section(_HTP_TYPE, _BY_CORE),
        "htp_op_instances": _section(_INSTANCE),
    }
    data = {
        "type": "object",
        "properties": sections,
        "required": list(sections),
        "patternProperties": {r"^dominant_path_htp_\d+$": _section(_DOMINANT)},
        "additionalProperties": False,
    }
    head = {"artifact_type": {"const": "QHAS"}, "version": _VERSION, "header_version": _VERSION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "HTP analysis summary",
        "type": "object",
        "properties": {
            "header": {"type": "object", "properties": head, "required": list(head)},
            "model_id": _TEXT,
            "source": {"type": "object"},
            "data": data,
        },
        "required": ["header", "model_id", "data"],
        "additionalProperties": False,
    }
