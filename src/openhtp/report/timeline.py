"""Records as an interactive timeline: one HTML file with nothing to fetch, drawn on a canvas.

The page gets columns of numbers rather than objects, so that tens of thousands of spans load and draw fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any

import msgspec

from openhtp.report.gantt import colours_of
from openhtp.trace.records import Flow, Instant, Record, Span

CATEGORIES = ("running", "waiting", "paused", "unit", "vtcm", "")


def records_to_html(
    records: Sequence[Record],
    *,
    title: str,
    unit: str = "us",
    unit_ns: int = 1_000,
    vtcm_bytes: int = 0,
    modelled: bool = True,
    lanes: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the page. Units come before clients; spans of VTCM become a map over time.

    ``lanes`` are (group, lane) pairs to show even if nothing happens in them.
    """
    spans = [record for record in records if isinstance(record, Span)]
    names: dict[str, int] = {}
    drawn = {place: _empty_lane(*place) for place in lanes}
    for span in sorted(spans, key=lambda span: span.start_ns):
        place = (span.group, span.lane)
        lane = drawn.get(place) or drawn.setdefault(place, _empty_lane(*place))
        lane["s"].append(span.start_ns)
        lane["d"].append(span.duration_ns)
        lane["i"].append(names.setdefault(span.name, len(names)))
        lane["c"].append(CATEGORIES.index(span.category) if span.category in CATEGORIES else len(CATEGORIES) - 1)
        args = span.args or {}
        lane["j"].append(args.get("job", 0))
        if lane["map"]:
            lane["a"].append(args.get("start_bytes", 0))
            lane["b"].append(args.get("bytes", 0))
    ordered = _ordered(list(drawn.values()))
    index = {(lane["group"], lane["name"]): number for number, lane in enumerate(ordered)}
    data = {
        "title": title,
        "times": "modelled" if modelled else "measured",
        "unit": unit,
        "unitNs": unit_ns,
        "vtcmBytes": vtcm_bytes,
        "names": list(names),
        "categories": CATEGORIES,
        "colours": colours_of(records),
        "lanes": ordered,
        "instants": _instants(records, index),
        "flows": _flows(records, index),
    }
    # A name may contain "</script>"; JSON allows the escape, HTML never sees the bracket.
    text = msgspec.json.encode(data).decode().replace("<", "\\u003c")
    page = resources.files("openhtp.report").joinpath("templates/timeline.html").read_text(encoding="utf-8")
    return page.replace("/*DATA*/null", text, 1)


def _empty_lane(group: str, name: str) -> dict[str, Any]:
    columns: dict[str, Any] = {key: [] for key in ("s", "d", "i", "c", "j", "a", "b")}
    return {"group": group, "name": name, "map": group.endswith("VTCM"), **columns}


def _ordered(lanes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Units first (HMX, HVX, VTCM, per core), clients last, each group in natural order."""
    kinds = ("HMX", "HVX", "VTCM")

    def key(lane: dict[str, Any]) -> tuple[int, str, int, int, str]:
        core, _, kind = lane["group"].rpartition(".")
        if kind in kinds:
            return (0, core, kinds.index(kind), len(lane["name"]), lane["name"])
        return (1, lane["group"], 0, 0, "")

    return sorted(lanes, key=key)


def _instants(records: Sequence[Record], index: dict[tuple[str, str], int]) -> list[list[Any]]:
    return [
        [index[record.group, record.lane], record.at_ns, record.name]
        for record in records
        if isinstance(record, Instant) and (record.group, record.lane) in index
    ]


def _flows(records: Sequence[Record], index: dict[tuple[str, str], int]) -> list[list[Any]]:
    found = []
    for record in records:
        if isinstance(record, Flow):
            start = index.get((record.from_group, record.from_lane))
            end = index.get((record.to_group, record.to_lane))
            if start is not None and end is not None:
                found.append([start, record.from_ns, end, record.to_ns, record.name])
    return sorted(found, key=lambda flow: flow[1])
