"""The JSON schema of the analysis summary, for whoever checks files before reading them."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

_WHOLE: Json = {"type": "integer", "minimum": 0}
_SHARE: Json = {"type": "number", "minimum": 0}
_TEXT: Json = {"type": "string"}
_FLAG: Json = {"type": "boolean"}
_TEXTS: Json = {"type": "array", "items": _TEXT}
_VERSION: Json = {"type": "object", "properties": dict.fromkeys(("major", "minor", "patch"), _WHOLE)}
_BYTES: Json = dict.fromkeys(("dram_read", "dram_write", "vtcm_read", "vtcm_write"), _WHOLE)
_COUNTED: Json = {"cycles": _WHOLE, "percent_active_cycles": _SHARE, **_BYTES}
_BY_CORE: Json = {
    r"^num_dominant_path_cycles_htp_\d+$": _WHOLE,
    r"^percent_dominant_path_cycles_htp_\d+$": _SHARE,
}
_RESOURCE: Json = {
    "type": {"enum": ["HMX", "HVX", "DMA", "UNK"]},
    **dict.fromkeys(("tid", "start_cycle", "end_cycle", "timeline_cycles", "cycles_used"), _WHOLE),
    "utilization": _SHARE,
    **_BYTES,
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
    **_BYTES,
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
