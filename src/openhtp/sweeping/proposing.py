"""Which points are measured, and in which order. Nothing here depends on workers, clocks or earlier interruptions.

A search yields batches of points and goes on when all of a batch is in the store. So a run that was broken off is
taken up by searching again from the beginning: points in the store are not measured a second time.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator
from typing import Any

from openhtp.core.errors import UnsupportedFeature
from openhtp.sweeping.store import Store
from openhtp.sweeping.study import (
    Axis,
    PointResult,
    Scalar,
    Study,
    StudyPoint,
    grid,
    grid_size,
    grid_values,
    key_of,
    verify_row,
)

_SHUFFLED = 2_000_000
"""Up to so many points a finite space is shuffled; larger ones are drawn from."""
_VAIN = 10_000
"""Draws in a row that give nothing new, after which a space counts as exhausted."""
_DIGITS = 9


def proposals(study: Study, store: Store) -> Iterator[Iterable[StudyPoint]]:
    """Batches of points; the next one is asked for when the last one is in the store."""
    if study.search.method == "grid":
        yield grid(study)
    elif study.search.method == "random":
        yield _drawn(study)
    else:
        yield from _optimized(study, store)


def expected(study: Study) -> int:
    """How many points there will be; where that is not known, how many at most."""
    if study.search.method != "grid":
        finite = all(axis.values for axis in study.axes)
        return min(study.search.samples, grid_size(study)) if finite else study.search.samples
    return sum(1 for _ in grid(study)) if study.space_constraints else grid_size(study)


def _drawn(study: Study) -> Iterator[StudyPoint]:
    source = random.Random(study.search.seed)
    for number, values in enumerate(itertools.islice(_draws(study, source), study.search.samples)):
        yield StudyPoint(number, values)


def _draws(study: Study, source: random.Random) -> Iterator[dict[str, Scalar]]:
    """Settings of the space, each once."""
    finite = all(axis.values for axis in study.axes)
    if finite and grid_size(study) <= _SHUFFLED:
        size = grid_size(study)
        numbers = source.sample(range(size), size)
        yield from (values for number in numbers if study.admits(values := grid_values(study, number)))
        return
    seen: set[str] = set()
    vain = 0
    while vain < _VAIN:
        values = {axis.name: _draw(axis, source) for axis in study.axes}
        key = key_of(values)
        if key in seen or not study.admits(values):
            vain += 1
            continue
        vain = 0
        seen.add(key)
        yield values


def _draw(axis: Axis, source: random.Random) -> Scalar:
    if axis.values:
        return source.choice(axis.values)
    return round(source.uniform(axis.low, axis.high), _DIGITS)


def _optimized(study: Study, store: Store) -> Iterator[list[StudyPoint]]:
    """Batches from Optuna, seeded anew for each: a batch depends on nothing but the results before it."""
    optuna = _optuna()
    directions = ["maximize" if objective.largest else "minimize" for objective in study.objectives]
    search = optuna.create_study(directions=directions)
    spaces = {axis.name: _distribution(optuna, axis) for axis in study.varied}
    asked = 0
    while asked < study.search.samples:
        search.sampler = optuna.samplers.TPESampler(seed=(study.search.seed * 1_000_003 + asked) % 2**32)
        size = min(study.search.batch, study.search.samples - asked)
        trials = [search.ask(spaces) for _ in range(size)]
        chosen = [_setting(study, trial.params) for trial in trials]
        fresh = {key_of(values): StudyPoint(asked + n, values) for n, values in reversed(list(enumerate(chosen)))}
        yield sorted(
            (p for key, p in fresh.items() if study.admits(p.values) and store.find(key) is None),
            key=lambda point: point.number,
        )
        for trial, values in zip(trials, chosen, strict=True):
            _tell(study, search, trial, store.find(key_of(values)), optuna)
        asked += size


def _tell(study: Study, search: Any, trial: Any, row: PointResult | None, optuna: Any) -> None:
    if row is None or row.measured is None:
        search.tell(trial, state=optuna.trial.TrialState.FAIL)
        return
    verify_row(study, row)
    measured = row.measured
    for constraint in study.result_constraints:
        trial.set_constraint(str(constraint), constraint.excess(measured))
    search.tell(trial, [row.number(objective.name) for objective in study.objectives])


def _setting(study: Study, params: dict[str, Any]) -> dict[str, Scalar]:
    values: dict[str, Scalar] = {}
    for axis in study.axes:
        if len(axis.values) == 1:
            values[axis.name] = axis.values[0]
        elif axis.continuous:
            values[axis.name] = round(params[axis.name], _DIGITS)
        else:
            values[axis.name] = axis.values[params[axis.name]]
    return values


def _distribution(optuna: Any, axis: Axis) -> Any:
    """Places among the values; in order where they are rising numbers, so that near ones count as alike."""
    if axis.continuous:
        return optuna.distributions.FloatDistribution(axis.low, axis.high)
    numbers = [value for value in axis.values if isinstance(value, (int, float)) and math.isfinite(value)]
    if len(numbers) == len(axis.values) and numbers == sorted(numbers):
        return optuna.distributions.IntDistribution(0, len(numbers) - 1)
    return optuna.distributions.CategoricalDistribution(range(len(axis.values)))


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UnsupportedFeature("a search with optuna needs it: pip install 'openhtp[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
