"""Outputs that are choices, as the boxes of a detector: rows are paired by what they say, not by their order.

Half precision swaps rows whose scores are nearly equal, and drops another one at the cut. Outputs with equally
many rows belong together (boxes, scores, classes), and are paired together. A row near the cut may have no
partner. An output with another number of rows than were chosen (a router's tokens, the classes of a network that
looks up neighbours) has an order of its own, and is no such set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import numpy_helper

from openhtp.session.accuracy import Closeness, closeness

Array = npt.NDArray[Any]
_CHOICES = frozenset(("NonMaxSuppression", "TopK"))
# A box of 4 numbers and its score, at least.
_BOX_AND_SCORE = 5
ChosenCounts = frozenset[int | None]
"""How many rows a choice may have left; None: it depends on the numbers."""
ANY_COUNT: ChosenCounts = frozenset({None})
# A row so near to the one at its own place, as a share of what is allowed, is that row.
_SAME = 0.1


@dataclass(frozen=True, slots=True)
class RowSet:
    """One output, compared as a set: how close paired rows are, and how many there were on ONNX Runtime."""

    nearness: Closeness
    rows: int
    note: str


def chosen_outputs(graph: Any) -> dict[str, ChosenCounts]:
    """Outputs of a graph's protobuf that depend on a choice, with how many rows each may have if it is one."""
    constants = {value.name: value for value in graph.initializer}
    chosen: dict[str, ChosenCounts] = {}
    for node in graph.node:
        if node.op_type == "Constant":
            constants |= {name: each.t for name in node.output for each in node.attribute if each.name == "value"}
        counts = _chosen_by(node, constants) | _carried(node, chosen)
        if counts:
            chosen.update(dict.fromkeys(node.output, counts))
    return {value.name: chosen[value.name] for value in graph.output if value.name in chosen}


def _chosen_by(node: Any, constants: Mapping[str, Any]) -> ChosenCounts:
    """How many a node itself chooses."""
    if node.op_type not in _CHOICES:
        return frozenset()
    if node.op_type == "TopK" and len(node.input) > 1 and node.input[1] in constants:
        return frozenset({int(numpy_helper.to_array(constants[node.input[1]]).reshape(-1)[0])})
    return ANY_COUNT


def _carried(node: Any, chosen: Mapping[str, ChosenCounts]) -> ChosenCounts:
    """How many rows come in; a Concat may have put them one after the other."""
    incoming = [chosen[name] for name in node.input if name in chosen]
    counts = frozenset[int | None]().union(*incoming)
    if node.op_type == "Concat" and len(incoming) == len(node.input) and None not in counts:
        counts |= {sum(max(count or 0 for count in each) for each in incoming)}
    return counts


def compare_row_sets(
    exact: Mapping[str, Sequence[Array]],
    other: Mapping[str, Sequence[Array]],
    chosen: Mapping[str, ChosenCounts],
    least_db: float,
) -> dict[str, RowSet]:
    """Compare outputs that are choices as sets of rows, those with equally many rows together."""
    together: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name in exact:
        array = exact[name][0]
        if (
            array.ndim
            and array.dtype.kind in "biuf"
            and not chosen.get(name, frozenset()).isdisjoint({None, _row_axis(array)})
        ):
            together[tuple(len(_rows(array)) for array in exact[name])].append(name)
    row_sets: dict[str, RowSet] = {}
    for members in together.values():
        if all(len({len(_rows(array)) for array in samples}) == 1 for samples in _by_sample(other, members)):
            row_sets |= _compare(members, _by_sample(exact, members), _by_sample(other, members), least_db)
    return row_sets


def _by_sample(outputs: Mapping[str, Sequence[Array]], names: Sequence[str]) -> list[tuple[Array, ...]]:
    return list(zip(*(outputs[name] for name in names), strict=True))


def _compare(
    names: Sequence[str], exact: Sequence[Sequence[Array]], other: Sequence[Sequence[Array]], least_db: float
) -> dict[str, RowSet]:
    """Pair rows of each sample, then compare output by output. A row without a partner counts as lost."""
    apart = 10 ** (-least_db / 20)
    sides: dict[str, tuple[list[Array], list[Array]]] = {name: ([], []) for name in names}
    rows = moved = excused = lost = 0
    for wanted, computed in zip(exact, other, strict=True):
        left, right = [_rows(array) for array in wanted], [_rows(array) for array in computed]
        partners, near_cut = _paired(left, right, apart)
        rows += len(partners)
        moved += int(np.sum((partners >= 0) & (partners != np.arange(len(partners)))))
        excused += int(near_cut.sum())
        lost += int(np.sum((partners < 0) & ~near_cut))
        kept = ~near_cut
        for name, a, b in zip(names, left, right, strict=True):
            padded = np.concatenate([b, np.zeros((1, b.shape[1]), b.dtype)]) if b.shape[1] == a.shape[1] else a * 0
            sides[name][0].append(a[kept].reshape(-1))
            sides[name][1].append(padded[partners[kept]].reshape(-1) if len(padded) else a[kept].reshape(-1) * 0)
    note = f"compared as a set of {rows:,} rows: {moved:,} at another place, {excused:,} near the cut left out"
    note += f", {lost:,} without a partner" if lost else ""
    return {
        name: RowSet(closeness(np.concatenate(a), np.concatenate(b)), rows, note) for name, (a, b) in sides.items()
    }


def _is_batched(array: Array) -> bool:
    return array.ndim > 2 or (array.ndim == 2 and array.shape[0] == 1)


def _row_axis(array: Array) -> int:
    """How many rows one picture has."""
    return int(array.shape[1 if _is_batched(array) else 0])


def _rows(array: Array) -> Array:
    """An output as rows of numbers; of a batch, all rows one after the other."""
    count = int(np.prod(array.shape[:2])) if _is_batched(array) else array.shape[0]
    return array.reshape(count, -1) if array.size else np.zeros((0, 1), array.dtype)


def _paired(left: Sequence[Array], right: Sequence[Array], apart: float) -> tuple[npt.NDArray[np.intp], Array]:
    """For each row of the left side its partner (-1: none), and whether it has none as it is near the cut."""
    first, second = _features(left, left), _features(right, left)
    partners = np.full(len(first), -1, np.intp)
    near_cut = np.zeros(len(first), bool)
    if first.shape[1] != second.shape[1]:
        return partners, near_cut
    free = np.ones(len(second), bool)
    for index, row in enumerate(first):
        if index < len(second) and free[index] and np.abs(second[index] - row).max() <= _SAME * apart:
            partners[index], free[index] = index, False
            continue
        candidates = np.flatnonzero(free)
        if not len(candidates):
            break
        distances = np.abs(second[candidates] - row).max(axis=1)
        # Among equally near rows, the one at the same place: then a row that stayed does not count as moved.
        nearest = min(range(len(candidates)), key=lambda at: (distances[at], abs(int(candidates[at]) - index)))
        if distances[nearest] <= apart:
            partners[index] = candidates[nearest]
            free[partners[index]] = False
    scores = _scores(left)
    if scores is not None and len(scores):
        near_cut = (partners < 0) & (scores <= scores.min() + apart * max(float(np.abs(scores).max()), 1e-30))
    return partners, near_cut


def _features(arrays: Sequence[Array], scale_by: Sequence[Array]) -> Array:
    """All numbers of a row. Floats count relative to the largest of their output, whole numbers as they are."""
    columns = []
    for array, scale in zip(arrays, scale_by, strict=True):
        numbers = np.nan_to_num(array.astype(np.float64))
        largest = float(np.abs(np.nan_to_num(scale.astype(np.float64))).max(initial=0.0)) or 1.0
        columns.append(numbers / largest if array.dtype.kind == "f" else numbers)
    return np.concatenate(columns, axis=1)


def _scores(arrays: Sequence[Array]) -> Array | None:
    """The scores by which rows were chosen: an output of one number per row, or a falling column of boxes."""
    for array in arrays:
        if array.dtype.kind == "f" and array.shape[1] == 1:
            return np.asarray(array[:, 0], np.float64)
    for array in arrays:
        if array.dtype.kind == "f" and array.shape[1] >= _BOX_AND_SCORE:
            for column in array.T.astype(np.float64):
                if np.all(np.diff(column) <= 0) and column.min(initial=0.0) >= 0 and column.max(initial=0.0) <= 1:
                    return np.asarray(column)
    return None
