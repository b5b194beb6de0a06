"""A study as one HTML file with nothing to fetch: Pareto plot, parallel coordinates, filters and a table.

Drawn by Apache ECharts; see ``openhtp.report.page``.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any

from openhtp.report.page import CHARTS, filled_page
from openhtp.sweeping.results import SweepResult
from openhtp.sweeping.study import PointResult, feasible

MOST_POINTS = 20_000
"""Points that a page holds; of more, the front and an even part of the others."""
_MOST_NUMBERS = 40
_MOST_CAUSES = 20


def result_to_html(result: SweepResult) -> str:
    """Return the page."""
    study = result.study
    front = {row.point.number for row in result.front}
    rows = _shown(result.measured, front)
    objectives = [objective.name for objective in study.objectives]
    others = (
        [name for name, value in (rows[0].measured or {}).items() if not isinstance(value, str)] if rows else []
    )
    axes = {axis.name for axis in study.axes}
    numbers = [name for name in dict.fromkeys([*objectives, *others]) if name not in axes][:_MOST_NUMBERS]
    data: dict[str, Any] = {
        "study": study.name,
        "measure": study.measure,
        "times": "measured" if study.measure == "live" else "modelled",
        "total": len(result.rows),
        "feasibleTotal": len(result.feasible),
        "failedTotal": len(result.failed),
        "axes": [{"name": axis.name, "values": axis.values or None} for axis in study.varied],
        "fixed": {axis.name: axis.values[0] for axis in study.axes if len(axis.values) == 1},
        "objectives": [{"name": each.name, "largest": each.largest} for each in study.objectives],
        "constraints": [str(each) for each in study.constraints],
        "each": study.each,
        "numbers": numbers,
        "point": [row.point.number for row in rows],
        "values": {axis.name: [row.point.values[axis.name] for row in rows] for axis in study.varied},
        "measured": {name: [(row.measured or {}).get(name) for row in rows] for name in numbers},
        "feasible": [feasible(study, row) for row in rows],
        "front": [row.point.number in front for row in rows],
        "sensitivity": {
            name: [[effect.axis, effect.share] for effect in effects]
            for name, effects in result.sensitivity().items()
        },
        "failures": [[cause, count] for cause, count, _ in result.causes()[:_MOST_CAUSES]],
    }
    template = resources.files("openhtp.sweeping").joinpath("templates/page.html").read_text(encoding="utf-8")
    return filled_page(template, data, CHARTS)


def _shown(rows: Sequence[PointResult], front: set[int]) -> list[PointResult]:
    if len(rows) <= MOST_POINTS:
        return list(rows)
    step = -(-len(rows) // MOST_POINTS)
    return [row for place, row in enumerate(rows) if row.point.number in front or place % step == 0]
