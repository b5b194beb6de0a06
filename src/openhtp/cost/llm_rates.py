"""Rates of language models, as ``tools/llm_fit.py`` fitted them to published ones.

A token takes ``(weight bytes + a * scores) / bandwidth``: weights are read once, and every head of every layer
masks, exponentiates and adds up a score for each place of the cache, on the vector units. A pass of 128 tokens
takes ``(weights + b * cache bytes + c) / rate``: products on the matrix unit, a flat cache that is put into its
tiles, and what a pass costs anyway. Bandwidth and rate are per SoC; a, b and c are common to all. Which terms
there are was chosen by how well they fit all rows; errors are those of models that had no part in the fit.
"""

from __future__ import annotations

import functools
import statistics
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from openhtp.cost.llm_shapes import LlmShape
from openhtp.hw.catalog import find_soc

_GB = 1e9
_MILLION = 1e6

Work = Callable[[LlmShape, str, int, Sequence[float]], float]


def token_work(shape: LlmShape, precision: str, context: int, factors: Sequence[float]) -> float:
    """What decoding a token takes, in gigabytes of weights."""
    return shape.weight_bytes(precision) / _GB + factors[0] * shape.scores(context) / _MILLION


def pass_work(shape: LlmShape, precision: str, context: int, factors: Sequence[float]) -> float:
    """What a pass of 128 tokens takes, in thousand millions of weights."""
    weights = (shape.layer_weights + shape.output_weights) / _GB
    return weights + factors[0] * shape.kv_bytes(context) / _GB + factors[1]


@dataclass(frozen=True, slots=True)
class RateLine:
    """One time: milliseconds for a unit of work by SoC, factors of its terms, and how much slower w4fp16 is."""

    work: Work
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
class LlmRates:
    """Both times, and by how much they are wrong: medians over models that had no part in the fit."""

    token: RateLine
    single: RateLine
    decode_error: float
    ttft_error: float

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
def llm_rates() -> LlmRates:
    """The rates that this package has."""
    table = tomllib.loads(resources.files("openhtp.cost").joinpath("llm_rates.toml").read_text(encoding="utf-8"))
    token, single = (
        RateLine(work, tuple(line["factors"]), line["slower"], line["unit_ms"])
        for work, line in ((token_work, table["token"]), (pass_work, table["pass"]))
    )
    return LlmRates(token, single, table["errors"]["decode"], table["errors"]["ttft"])
