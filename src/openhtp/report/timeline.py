"""Marks as an interactive timeline: one HTML file with nothing to fetch, drawn on a canvas.

The page gets columns of numbers rather than objects, so that tens of thousands of spans load and draw fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openhtp.report.gantt import colours_of
from openhtp.report.lanes import (
    CLIENTS,
    DEADLINE,
    DMA,
    HMX,
    HVX,
    MISSED,
    VTCM,
    YIELD,
    Flow,
    Instant,
    Mark,
    TimelineSpan,
    kind_of,
)
from openhtp.report.page import filled_page, template_named

_INSTANTS = {YIELD: "yields", DEADLINE: "due", MISSED: "missed"}
CATEGORIES = ("running", "waiting", "paused", "unit", "vtcm", "")


def marks_to_html(
    marks: Sequence[Mark],
    *,
    title: str,
    unit: str = "us",
    unit_ns: int = 1_000,
    vtcm_bytes: int = 0,
    modelled: bool = True,
    lanes: Sequence[tuple[str, str]] = (),
    verdict: str = "",
) -> str:
    """Return the page. Units come before clients; spans of VTCM become a map over time.

    ``lanes`` are (group, lane) pairs to show even if nothing happens in them; ``verdict`` is shown by the title.
    """
    spans = [mark for mark in marks if isinstance(mark, TimelineSpan)]
    names: dict[str, int] = {}
    drawn = {key: _empty_lane(*key) for key in lanes}
    for span in sorted(spans, key=lambda span: span.start_ns):
        key = (span.group, span.lane)
        lane = drawn.get(key) or drawn.setdefault(key, _empty_lane(*key))
        lane["s"].append(span.start_ns)
        lane["d"].append(span.duration_ns)
        lane["i"].append(names.setdefault(span.name, len(names)))
        lane["c"].append(CATEGORIES.index(span.category) if span.category in CATEGORIES else len(CATEGORIES) - 1)
        args = span.args or {}
        lane["j"].append(args.get("job", 0))
        if lane["map"]:
            lane["a"].append(args.get("start_bytes", 0))
            lane["b"].append(args.get("bytes", 0))
    _add_instants(marks, drawn)
    ordered = _ordered(list(drawn.values()))
    index = {(lane["group"], lane["name"]): number for number, lane in enumerate(ordered)}
    data = {
        "title": title,
        "times": "modelled" if modelled else "measured",
        "verdict": verdict,
        "missed": sum(isinstance(mark, Instant) and mark.category == MISSED for mark in marks),
        "unit": unit,
        "unitNs": unit_ns,
        "vtcmBytes": vtcm_bytes,
        "names": list(names),
        "categories": CATEGORIES,
        "colours": colours_of(marks),
        "lanes": ordered,
        "flows": _flows(marks, index),
    }
    return filled_page(template_named("timeline.html"), data)


def _empty_lane(group: str, name: str) -> dict[str, Any]:
    columns: dict[str, Any] = {key: [] for key in ("s", "d", "i", "c", "j", "a", "b", "late", *_INSTANTS.values())}
    kind = kind_of(group)
    return {"group": group, "name": name, "map": kind == VTCM, "client": kind == CLIENTS, **columns}


def _ordered(lanes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Units first (HMX, HVX, VTCM, DMA, core by core), clients last, each group in natural order."""
    kinds = (HMX, HVX, VTCM, DMA)
    cores: dict[str, int] = {}
    for lane in lanes:
        cores.setdefault(lane["group"].removesuffix(kind_of(lane["group"])), len(cores))

    def key(lane: dict[str, Any]) -> tuple[int, int, int, int, str]:
        kind = kind_of(lane["group"])
        core = cores[lane["group"].removesuffix(kind)]
        if kind in kinds:
            return (0, core, kinds.index(kind), len(lane["name"]), lane["name"])
        return (1, core, 0, 0, "")

    return sorted(lanes, key=key)


def _add_instants(marks: Sequence[Mark], drawn: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Each kind of mark as a column of times, in order, so that the page finds those in view by bisection."""
    known = [m for m in marks if isinstance(m, Instant) and m.category in _INSTANTS and (m.group, m.lane) in drawn]
    for mark in sorted(known, key=lambda mark: mark.at_ns):
        lane = drawn[mark.group, mark.lane]
        lane[_INSTANTS[mark.category]].append(mark.at_ns)
        if mark.category == MISSED:
            lane["late"].append((mark.args or {}).get("late_ns", 0))


def _flows(marks: Sequence[Mark], index: dict[tuple[str, str], int]) -> list[list[Any]]:
    flows = []
    for mark in marks:
        if isinstance(mark, Flow):
            start = index.get((mark.from_group, mark.from_lane))
            end = index.get((mark.to_group, mark.to_lane))
            if start is not None and end is not None:
                flows.append([start, mark.from_ns, end, mark.to_ns, mark.name])
    return sorted(flows, key=lambda flow: flow[1])
