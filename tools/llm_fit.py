"""Fits the rates of language models to published ones, and says how well it predicts models it has not seen.

python tools/llm_fit.py     writes src/openhtp/cost/llm_rates.toml
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
from pathlib import Path

from openhtp.cost.llm import PRESETS, LlmRates, LlmShape, RateLine, Work, pass_work, token_work

ROWS = Path(__file__).parent / "published/llm.csv"
RATES = Path(__file__).parents[1] / "src/openhtp/cost/llm_rates.toml"
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


_Cost = Callable[[Published], float]


@functools.cache
def published() -> tuple[Published, ...]:
    """All published rows."""
    text = ROWS.read_text(encoding="utf-8")
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


def fit(rows: Sequence[Published]) -> tuple[RateLine, RateLine]:
    """Factors that make the errors of these rows small: of a token, and of a pass."""
    return (
        _line(rows, token_work, lambda row: row.token_ms, (0.1,)),
        _line(rows, pass_work, lambda row: row.pass_ms, (1.0, 1.0)),
    )


def _line(rows: Sequence[Published], work: Work, cost: _Cost, start: tuple[float, ...]) -> RateLine:
    """Search each factor in turn, in ever smaller steps, until none makes the errors smaller."""
    slower = _slowdown(rows, cost)

    def line(factors: tuple[float, ...]) -> RateLine:
        return RateLine(work, factors, slower, _units(rows, work, cost, factors, slower))

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
    rows: Sequence[Published], work: Work, cost: _Cost, factors: Sequence[float], slower: float
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


def _error(rows: Sequence[Published], line: RateLine, cost: _Cost) -> float:
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
    errors = []
    for row in published():
        token, single = _fit_without(row.model, clones)
        rate = 1e3 / token.time_ms(row.shape, row.soc, row.precision, row.context)
        first = single.time_ms(row.shape, row.soc, row.precision, row.context)
        errors.append(LeftOut(row, rate / row.tokens_per_s - 1, first / row.pass_ms - 1))
    return tuple(errors)


@functools.cache
def _fit_without(model: str, clones: bool) -> tuple[RateLine, RateLine]:
    shape = PRESETS[model]
    rows = published()
    return fit([row for row in rows if row.model != model and not (clones and row.shape == shape)])


def fitted_rates() -> LlmRates:
    """The fit to all rows, with the median errors of models that were left out together with their clones."""
    errors = left_out()
    return LlmRates(
        *fit(published()),
        decode_error=statistics.median(abs(error.decode) for error in errors),
        ttft_error=statistics.median(abs(error.first) for error in errors),
    )


def write_rates() -> None:
    """Put the rates where the package finds them, to the last digit."""
    rates = fitted_rates()
    text = "# Written by tools/llm_fit.py.\n"
    for name, line in (("token", rates.token), ("pass", rates.single)):
        text += f"\n[{name}]\nfactors = {list(line.factors)}\nslower = {line.slower!r}\n\n[{name}.unit_ms]\n"
        text += "".join(f'"{soc}" = {unit!r}\n' for soc, unit in line.unit_ms.items())
    text += f"\n[errors]\ndecode = {rates.decode_error!r}\nttft = {rates.ttft_error!r}\n"
    RATES.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_rates()
