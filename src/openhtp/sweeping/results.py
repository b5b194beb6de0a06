"""The outcome of a study: its best points and what they depend on, as plain values, a Parquet file or a page."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from openhtp.core.errors import UnsupportedFeature, error_context
from openhtp.core.files import write_file
from openhtp.report.page import CHARTS, filled_page
from openhtp.sweeping.store import Store, open_store
from openhtp.sweeping.study import Axis, Objective, PointResult, Scalar, Study, feasible, verify_row


class SweepResult:
    """All finished points of a study, in its order."""

    def __init__(self, study: Study, rows: Sequence[PointResult], made_by: str) -> None:
        self.study = study
        self.rows = list(rows)
        self.made_by = made_by

    @classmethod
    def of(cls, store: Store) -> SweepResult:
        """The content of a store."""
        study, rows = store.study(), store.rows()
        with error_context(store=store.where):
            for row in rows:
                verify_row(study, row)
        return cls(study, rows, store.made_by())

    @property
    def points(self) -> list[dict[str, Any]]:
        """The points as plain values."""
        return [self._plain_values(row) for row in self.rows]

    @cached_property
    def measured(self) -> list[PointResult]:
        """Points that did not fail."""
        return [row for row in self.rows if row.measured is not None]

    @cached_property
    def feasible(self) -> list[PointResult]:
        """Points that hold all constraints."""
        return [row for row in self.measured if feasible(self.study, row)]

    @property
    def failed(self) -> list[PointResult]:
        """Points that failed, each with its cause."""
        return [row for row in self.rows if row.error is not None]

    def causes(self) -> list[tuple[str, int, PointResult]]:
        """Why points failed: the cause, how often, and the first of them; the most frequent first."""
        counts = Counter(row.error for row in self.failed)
        first = {row.error: row for row in reversed(self.failed)}
        return [(str(cause), count, first[cause]) for cause, count in counts.most_common()]

    @cached_property
    def front(self) -> list[PointResult]:
        """Feasible points that nothing beats in all objectives, in the study's order."""
        front_rows = []
        for rows in self.groups().values():
            front_rows += [rows[n] for n in pareto(losses_of(rows, self.study.objectives))]
        return sorted(front_rows, key=lambda row: row.point.number)

    def groups(self) -> dict[tuple[Scalar, ...], list[PointResult]]:
        """Feasible points by the values of the axes in ``each``; all of them together if there is none."""
        rows_of: dict[tuple[Scalar, ...], list[PointResult]] = {}
        for row in self.feasible:
            rows_of.setdefault(tuple(row.point.values[name] for name in self.study.each), []).append(row)
        return rows_of

    def best(self, objective: Objective, count: int = 10) -> list[PointResult]:
        """The best feasible points for one objective: ``count`` for each group."""
        return [row for rows in self.groups().values() for row in best(rows, objective, count)]

    def sensitivity(self) -> dict[str, list[AxisEffect]]:
        """Per objective, how much each axis explains."""
        return {
            each.name: sensitivity(
                self.measured, [axis for axis in self.study.varied if axis.name != each.name], each
            )
            for each in self.study.objectives
        }

    def to_json(self) -> dict[str, Any]:
        """The fixed format of ``sweep --json``; nothing in it depends on when or where it was measured."""
        study = self.study
        return {
            "study": study.name,
            "measure": study.measure,
            "times": "measured" if study.measure == "live" else "modelled",
            "openhtp": self.made_by,
            "axes": [axis.name for axis in study.axes],
            "objectives": {each.name: "max" if each.largest else "min" for each in study.objectives},
            "constraints": [str(each) for each in study.constraints],
            "each": list(study.each),
            "counts": {"points": len(self.rows), "failed": len(self.failed), "feasible": len(self.feasible)},
            "front": [row.point.number for row in self.front],
            "sensitivity": {
                name: {effect.axis: effect.share for effect in effects}
                for name, effects in self.sensitivity().items()
            },
            "points": self.points,
        }

    def _plain_values(self, row: PointResult) -> dict[str, Any]:
        return {
            "number": row.point.number,
            "values": row.point.values,
            "measured": row.measured,
            "feasible": feasible(self.study, row),
            "error": row.error,
        }

    def write_parquet(self, path: Path) -> None:
        """One row per point, a column for each axis and each measured number; failures have a cause instead."""
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as error:
            raise UnsupportedFeature("Parquet needs pyarrow: pip install 'openhtp[sweep]'") from error
        fronts = {row.point.number for row in self.front}
        columns: dict[str, list[Scalar]] = {
            "number": [row.point.number for row in self.rows],
            **{axis.name: [row.point.values.get(axis.name) for row in self.rows] for axis in self.study.axes},
        }
        for name in dict.fromkeys(name for row in self.measured for name in row.measured or {}):
            # An axis may have the name of a number: of a client that is called like one.
            column = name if name not in columns else f"measured.{name}"
            columns[column] = [(row.measured or {}).get(name) for row in self.rows]
        columns["feasible"] = [feasible(self.study, row) for row in self.rows]
        columns["front"] = [row.point.number in fronts for row in self.rows]
        columns["error"] = [row.error for row in self.rows]
        table = pa.table({name: pa.array(_of_one_kind(values)) for name, values in columns.items()})
        content = io.BytesIO()
        parquet.write_table(table, content, compression="zstd")
        write_file(path, content.getvalue())


def _of_one_kind(values: list[Scalar]) -> list[Scalar]:
    """A column has one type: words if any value is one, fractions if any is one."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return values
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]


def load_results(folder: str | Path) -> SweepResult:
    """The content of the store in a folder.

    Raises:
        WrongStore: the folder holds none.
    """
    with open_store(Path(folder)) as store:
        return SweepResult.of(store)


Losses = npt.NDArray[np.float64]

_BINS = 16
"""Parts into which an axis with more values than this is cut."""


class AxisEffect(Struct, frozen=True):
    """How much of the spread of an objective one axis explains by itself, 0 to 1."""

    axis: str
    share: float


def losses_of(rows: Sequence[PointResult], objectives: Sequence[Objective]) -> Losses:
    """Rows by objectives, smaller is better."""
    return np.array([[each.loss(row) for each in objectives] for row in rows]).reshape(len(rows), len(objectives))


def best(rows: Sequence[PointResult], objective: Objective, count: int) -> list[PointResult]:
    """The best rows for one objective; equal ones in the study's order."""
    return sorted(rows, key=lambda row: (objective.loss(row), row.point.number))[:count]


def pareto(losses: Losses) -> list[int]:
    """Rows that no other row beats by being at least as good everywhere and better somewhere; in order.

    Rows are visited in order of their sum: a row comes after every row that beats it.
    """
    if not len(losses):
        return []
    spread = np.ptp(losses, axis=0)
    order = np.argsort(
        ((losses - losses.min(axis=0)) / np.where(spread > 0, spread, 1)).sum(axis=1), kind="stable"
    )
    left = order
    front: list[int] = []
    while len(left):
        first = left[0]
        front.append(int(first))
        one = losses[first]
        others = losses[left]
        beaten = (others >= one).all(axis=1) & (others > one).any(axis=1)
        beaten[0] = True  # it is in the front now
        left = left[~beaten]
    return sorted(front)


def sensitivity(rows: Sequence[PointResult], axes: Sequence[Axis], objective: Objective) -> list[AxisEffect]:
    """Which axis matters: the variance of the means of its values, over the whole variance; largest first.

    Of a full grid these are the main effects; what is left of 1 is due to axes acting together.
    """
    losses = losses_of(rows, [objective])[:, 0]
    whole = float(losses.var()) if len(losses) else 0.0
    effects = []
    for axis in axes:
        groups = _group_numbers([row.point.values[axis.name] for row in rows])
        share = 0.0
        if whole > 0:
            counts = np.bincount(groups)
            means = np.bincount(groups, losses) / np.maximum(counts, 1)
            share = float((counts * (means - losses.mean()) ** 2).sum() / (len(losses) * whole))
        effects.append(AxisEffect(axis.name, round(min(1.0, share), 6)))
    return sorted(effects, key=lambda effect: -effect.share)


def _group_numbers(values: Sequence[Scalar]) -> npt.NDArray[np.intp]:
    """A number for each value; neighbours share one where there are too many."""
    if all(isinstance(value, (int, float)) for value in values):
        distinct, groups = np.unique(np.array(values, dtype=float), return_inverse=True)
        if len(distinct) > _BINS:
            groups = groups * _BINS // len(distinct)
        return groups.astype(np.intp)
    numbers: dict[Scalar, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.intp)


MOST_POINTS = 20_000
"""Points that a page holds; of more, the front and an even part of the others."""
_MOST_NUMBERS = 40
_MOST_CAUSES = 20


def result_to_html(result: SweepResult) -> str:
    """Return the page."""
    study = result.study
    front = {row.point.number for row in result.front}
    rows = _drawn_rows(result.measured, front)
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
    template = (Path(__file__).parent / "templates" / "page.html").read_text(encoding="utf-8")
    return filled_page(template, data, CHARTS)


def _drawn_rows(rows: Sequence[PointResult], front: set[int]) -> list[PointResult]:
    if len(rows) <= MOST_POINTS:
        return list(rows)
    step = -(-len(rows) // MOST_POINTS)
    return [row for index, row in enumerate(rows) if row.point.number in front or index % step == 0]
