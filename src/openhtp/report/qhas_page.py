"""The analysis summary as a page: sections that unfold, tables to sort and filter, a pie for any column."""

from __future__ import annotations

from typing import Any

from openhtp.records.schematic import Schematic
from openhtp.report.page import CHARTS_AND_TABLES, filled_page, template_named

_TITLES = {
    "qnn_op_types": "QNN Op Types",
    "qnn_op_instances_nodes": "QNN Op Instances (Nodes)",
    "htp_op_types": "HTP Op Types",
    "htp_op_instances": "HTP Op Instances",
}
_OVERALL = "htp_overall_summary"
_MOST_DRAWN = 20_000


def qhas_to_html(qhas: dict[str, Any], schematic: Schematic) -> str:
    """Return the page. ``schematic`` is what the summary was made from; the timeline shows its ops."""
    data = qhas["data"]
    overall = data[_OVERALL]["data"]
    sections = [
        {
            "id": _OVERALL,
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
    lanes = {(core, engine, thread): place for place, (core, _, thread, engine) in enumerate(keys)}
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
