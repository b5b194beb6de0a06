"""Rates of language models: published ones, and what was fitted to them.

A token takes ``(weight bytes + a * scores) / bandwidth``: weights are read once, and every head of every layer
masks, exponentiates and adds up a score for each place of the cache, on the vector units. A pass of 128 tokens
takes ``(weights + b * cache bytes + c) / rate``: products on the matrix unit, a flat cache that is put into its
tiles, and what a pass costs anyway. Bandwidth and rate are per SoC; a, b and c are common to all. Which terms
there are was chosen by how well they fit all rows; errors are those of models that had no part in the fit.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from openhtp.cost.llm_shapes import PRESETS, LlmShape
from openhtp.hw.catalog import find_soc

_GB = 1e9
_MILLION = 1e6
# How far a search for a term's factor goes: from one step to the next it is at least this much larger.
_FINEST = 1.02


@dataclass(frozen=True, slots=True)
class Published:
    """One published row: a pass of 128 tokens, and decoding with a full cache."""

    model: str
    precision: str
    soc: str
    context: int
    pass_ms: float
    tokens_per_s: float

    @property
    def shape(self) -> LlmShape:
        """Sizes of its model."""
        return PRESETS[self.model]

    @property
    def token_ms(self) -> float:
        """Time of one token."""
        return 1e3 / self.tokens_per_s


def _token_work(shape: LlmShape, precision: str, context: int, factors: Sequence[float]) -> float:
    """What decoding a token takes, in gigabytes of weights."""
    return shape.weight_bytes(precision) / _GB + factors[0] * shape.scores(context) / _MILLION


def _pass_work(shape: LlmShape, precision: str, context: int, factors: Sequence[float]) -> float:
    """What a pass of 128 tokens takes, in thousand millions of weights."""
    weights = (shape.layer_weights + shape.output_weights) / _GB
    return weights + factors[0] * shape.kv_bytes(context) / _GB + factors[1]


_Work = Callable[[LlmShape, str, int, Sequence[float]], float]
_Cost = Callable[[Published], float]


@dataclass(frozen=True, slots=True)
class Line:
    """One time: milliseconds for a unit of work by SoC, factors of its terms, and how much slower w4fp16 is."""

    work: _Work
    factors: tuple[float, ...]
    slower: float
    unit_ms: dict[str, float]

    def time_ms(self, shape: LlmShape, soc: str, precision: str, context: int) -> float:
        """The time on a SoC; on one without rows, what others have for the bandwidth of their memory."""
        unit = self.unit_ms.get(soc)
        if unit is None:
            ratios = [known * find_soc(name).dma_gbs for name, known in self.unit_ms.items()]
            unit = statistics.median(ratios) / find_soc(soc).dma_gbs
        factor = self.slower if precision == "w4fp16" else 1.0
        return factor * unit * self.work(shape, precision, context, self.factors)


@dataclass(frozen=True, slots=True)
class Fit:
    """Both times."""

    token: Line
    single: Line

    def decode_ms(self, shape: LlmShape, soc: str, precision: str, context: int) -> float:
        """Time of one token."""
        return self.token.time_ms(shape, soc, precision, context)

    def pass_ms(self, shape: LlmShape, soc: str, precision: str, context: int) -> float:
        """Time of a pass of 128 tokens."""
        return self.single.time_ms(shape, soc, precision, context)

    def knows(self, soc: str) -> bool:
        """Whether rates of this SoC were published."""
        return soc in self.token.unit_ms


@functools.cache
def published() -> tuple[Published, ...]:
    """All published rows."""
    text = resources.files("openhtp.cost.published").joinpath("llm.csv").read_text(encoding="utf-8")
    return tuple(
        Published(
            row["model"],
            row["precision"],
            row["soc"],
            int(row["context"]),
            float(row["pass_128_ms"]),
            float(row["tokens_per_s"]),
        )
        for row in csv.DictReader(io.StringIO(text))
    )


def fit(rows: Sequence[Published]) -> Fit:
    """Factors that make the errors of these rows small."""
    return Fit(
        _line(rows, _token_work, lambda row: row.token_ms, (0.1,)),
        _line(rows, _pass_work, lambda row: row.pass_ms, (1.0, 1.0)),
    )


def _line(rows: Sequence[Published], work: _Work, cost: _Cost, start: tuple[float, ...]) -> Line:
    """Search each factor in turn, in ever smaller steps, until none makes the errors smaller."""
    slower = _slowdown(rows, cost)

    def line(factors: tuple[float, ...]) -> Line:
        return Line(work, factors, slower, _units(rows, work, cost, factors, slower))

    factors, step = start, 2.0
    least = _error(rows, line(factors), cost)
    while step > _FINEST:
        tries = [
            (*factors[:place], changed, *factors[place + 1 :])
            for place, factor in enumerate(factors)
            for changed in (factor * step, factor / step)
        ]
        errors = [_error(rows, line(tried), cost) for tried in tries]
        if min(errors) < least - 1e-9:
            least = min(errors)
            factors = tries[errors.index(least)]
        else:
            step = step**0.5
    return line(factors)


def _slowdown(rows: Sequence[Published], cost: _Cost) -> float:
    """How much longer w4fp16 takes than w4a16, where a model was published in both."""
    known = {(row.model, row.soc): cost(row) for row in rows if row.precision == "w4a16"}
    ratios = [
        cost(row) / known[row.model, row.soc]
        for row in rows
        if row.precision == "w4fp16" and (row.model, row.soc) in known
    ]
    return statistics.median(ratios) if ratios else 2.0


def _units(
    rows: Sequence[Published], work: _Work, cost: _Cost, factors: Sequence[float], slower: float
) -> dict[str, float]:
    """The middle of each SoC; models of one shape count once, w4a16 alone where there is any."""
    plain = {row.soc for row in rows if row.precision == "w4a16"}
    found: dict[str, dict[LlmShape, list[float]]] = {}
    for row in rows:
        if row.precision == "w4a16" or row.soc not in plain:
            took = cost(row) / (slower if row.precision == "w4fp16" else 1.0)
            unit = took / work(row.shape, row.precision, row.context, factors)
            found.setdefault(row.soc, {}).setdefault(row.shape, []).append(unit)
    return {soc: statistics.median(map(statistics.median, units.values())) for soc, units in found.items()}


def _error(rows: Sequence[Published], line: Line, cost: _Cost) -> float:
    """How far off rows are, as ratios; those of one SoC, shape and precision count once."""
    alike = Counter((row.soc, row.shape, row.precision) for row in rows)
    return sum(
        abs(math.log(line.time_ms(row.shape, row.soc, row.precision, row.context) / cost(row)))
        / alike[row.soc, row.shape, row.precision]
        for row in rows
    )


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Errors of one row, predicted by a fit without any row of its model."""

    row: Published
    decode: float
    first: float


@functools.cache
def left_out(*, clones: bool = True) -> tuple[LeftOut, ...]:
    """Every row, predicted without its model, and without ``clones`` of that: other models of the same shape."""
    found = []
    for row in published():
        made = _fit_without(row.model, clones)
        rate = 1e3 / made.decode_ms(row.shape, row.soc, row.precision, row.context)
        first = made.pass_ms(row.shape, row.soc, row.precision, row.context)
        found.append(LeftOut(row, rate / row.tokens_per_s - 1, first / row.pass_ms - 1))
    return tuple(found)


@functools.cache
def _fit_without(model: str, clones: bool) -> Fit:
    shape = PRESETS[model]
    rows = published()
    return fit([row for row in rows if row.model != model and not (clones and row.shape == shape)])


@functools.cache
def whole_fit() -> Fit:
    """The fit to all rows."""
    return fit(published())


def median_errors() -> tuple[float, float]:
    """Of tokens per second and of the first token, with models and their clones left out."""
    rows = left_out()
    return (
        statistics.median(abs(row.decode) for row in rows),
        statistics.median(abs(row.first) for row in rows),
    )
