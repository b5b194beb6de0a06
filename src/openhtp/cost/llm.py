"""How fast language models run: decoding is bound by what it reads, a prefill pass by what it multiplies.

A token takes ``(bytes + extra) / bandwidth``, where bytes are all weights and the whole KV cache; a pass of 128
tokens takes ``weights ** power / scale``, as larger models use the matrix unit better. Bandwidth and scale are per
SoC, the others are common; all are fitted to published rates (``published/llm.csv``), and every result says how
far off models were that had no part in the fit. Everything here is modelled.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import InvalidArgument
from openhtp.hw.catalog import find_soc

PASS_TOKENS = 128
_GB = 1e9
# Bits of weights in the layers, and the factor on both times against w4a16, where it is not bytes alone.
_WEIGHT_BITS = {"w4a16": 4, "w8a16": 8, "w4fp16": 4}
_FITTED = ("w4a16", "w4fp16")
# Of a flat cache: every pass re-tiles it, at a rate that nobody has published; this is the range assumed.
_RETILE_GBS = (20.0, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmShape:
    """Sizes of a decoder."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int

    @property
    def layer_weights(self) -> int:
        """Numbers in the matrices of all layers."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.ffn)

    @property
    def output_weights(self) -> int:
        """Numbers in the output matrix."""
        return self.hidden * self.vocab

    def kv_bytes(self, context: int) -> int:
        """Bytes of an 8-bit cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim * context

    def bytes_read(self, precision: str, context: int) -> float:
        """What decoding one token reads: layers, the output matrix at 8 bits, the whole cache."""
        layers = self.layer_weights * _WEIGHT_BITS[precision] / 8
        return layers + self.output_weights + self.kv_bytes(context)


def _shape(layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, ffn: int, vocab: int) -> LlmShape:
    return LlmShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
    )


_LLAMA_8B = _shape(32, 4096, 32, 8, 128, 14336, 128256)
PRESETS: dict[str, LlmShape] = {
    "llama-3.2-1b": _shape(16, 2048, 32, 8, 64, 8192, 128256),
    "llama-3.2-3b": _shape(28, 3072, 24, 8, 128, 8192, 128256),
    "llama-3.1-8b": _LLAMA_8B,
    "llama-3-8b": _LLAMA_8B,
    "llama-3-8b-elyza": _LLAMA_8B,
    "llama-3-8b-taide": _LLAMA_8B,
    "llama-2-7b": _shape(32, 4096, 32, 32, 128, 11008, 32000),
    "mistral-7b-v0.3": _shape(32, 4096, 32, 8, 128, 14336, 32768),
    "qwen2-7b": _shape(28, 3584, 28, 4, 128, 18944, 152064),
    "falcon3-7b": _shape(28, 3072, 12, 4, 256, 23040, 131072),
    "baichuan2-7b": _shape(32, 4096, 32, 32, 128, 11008, 125696),
    "indus-1b": _shape(16, 2048, 32, 8, 64, 8192, 128256),
}


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


@dataclass(frozen=True, slots=True)
class Fit:
    """What was found: GB/s and scale of a pass by SoC, and what all have in common."""

    bandwidth: dict[str, float]
    scale: dict[str, float]
    extra_bytes: float
    power: float
    slower_decode: float
    slower_pass: float

    def decode_ms(self, shape: LlmShape, soc: str, precision: str, context: int) -> float:
        """Time of one token."""
        factor = self.slower_decode if precision == "w4fp16" else 1.0
        read = shape.bytes_read(precision, context) + self.extra_bytes
        return factor * read / _rate(self.bandwidth, soc) / _GB * 1e3

    def pass_ms(self, shape: LlmShape, soc: str, precision: str) -> float:
        """Time of a pass of 128 tokens."""
        factor = self.slower_pass if precision == "w4fp16" else 1.0
        weights = (shape.layer_weights + shape.output_weights) / _GB
        return float(factor * weights**self.power / _rate(self.scale, soc) * 1e3)


def _rate(known: dict[str, float], soc: str) -> float:
    """What was fitted for a SoC; for one without rows, what others have for the bandwidth of their memory."""
    if soc in known:
        return known[soc]
    ratios = [rate / _memory_gbs(name) for name, rate in known.items()]
    return statistics.median(ratios) * _memory_gbs(soc)


def _memory_gbs(soc: str) -> float:
    return find_soc(soc).dma_gbs


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
    """Parameters that make the median of errors small."""
    slower = [_slowdown(rows, lambda row: 1 / row.tokens_per_s), _slowdown(rows, lambda row: row.pass_ms)]
    extra = min((number * 2e7 for number in range(40)), key=lambda e: _decode_error(rows, e, slower[0]))
    power = min((number / 50 for number in range(20, 56)), key=lambda p: _pass_error(rows, p, slower[1]))
    return Fit(
        _bandwidths(rows, extra, slower[0]), _scales(rows, power, slower[1]), extra, power, slower[0], slower[1]
    )


def _slowdown(rows: Sequence[Published], cost: Callable[[Published], float]) -> float:
    """How much longer w4fp16 takes than w4a16, where a model was published in both."""
    known = {(row.model, row.soc): cost(row) for row in rows if row.precision == "w4a16"}
    ratios = [
        cost(row) / known[row.model, row.soc]
        for row in rows
        if row.precision == "w4fp16" and (row.model, row.soc) in known
    ]
    return statistics.median(ratios) if ratios else 2.0


def _bandwidths(rows: Sequence[Published], extra: float, slower: float) -> dict[str, float]:
    def rate(row: Published) -> float:
        factor = slower if row.precision == "w4fp16" else 1.0
        return factor * (row.shape.bytes_read(row.precision, row.context) + extra) * row.tokens_per_s / _GB

    return _by_soc(rows, rate)


def _scales(rows: Sequence[Published], power: float, slower: float) -> dict[str, float]:
    def rate(row: Published) -> float:
        factor = slower if row.precision == "w4fp16" else 1.0
        weights = (row.shape.layer_weights + row.shape.output_weights) / _GB
        return float(factor * weights**power / row.pass_ms * 1e3)

    return _by_soc(rows, rate)


def _by_soc(rows: Sequence[Published], rate: Callable[[Published], float]) -> dict[str, float]:
    """The middle rate of each SoC; models of one shape count once, w4a16 alone where there is any."""
    found: dict[str, dict[LlmShape, float]] = {}
    for row in sorted(rows, key=lambda row: row.precision != "w4a16"):
        rates = found.setdefault(row.soc, {})
        if row.precision == "w4a16" or not any(
            other.soc == row.soc and other.precision == "w4a16" for other in rows
        ):
            rates[row.shape] = rate(row)
    return {soc: statistics.median(rates.values()) for soc, rates in found.items()}


def _decode_error(rows: Sequence[Published], extra: float, slower: float) -> float:
    made = Fit(_bandwidths(rows, extra, slower), {}, extra, 0.0, slower, 1.0)
    return statistics.fmean(
        abs(math.log(made.decode_ms(row.shape, row.soc, row.precision, row.context) * row.tokens_per_s / 1e3))
        for row in rows
    )


def _pass_error(rows: Sequence[Published], power: float, slower: float) -> float:
    made = Fit({}, _scales(rows, power, slower), 0.0, power, 1.0, slower)
    return statistics.fmean(
        abs(math.log(made.pass_ms(row.shape, row.soc, row.precision) / row.pass_ms)) for row in rows
    )


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Errors of one row, predicted by a fit without any row of a model of its shape."""

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
        first = made.pass_ms(row.shape, row.soc, row.precision)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmEstimate:
    """Modelled times of a language model on a SoC. Errors are medians over models that had no part in the fit."""

    model: str
    soc: str
    precision: str
    context: int
    prompt: int
    tokens_per_s: float
    tokens_per_s_low: float
    tokens_per_s_high: float
    ttft_ms: float
    pass_ms: float
    decode_ms: float
    bound_by: str
    decode_error: float
    ttft_error: float
    fitted: bool
    native_gain_ms: tuple[float, float]

    def pass_of(self, tokens: int) -> float:
        """Time of a pass of some other number of tokens: weights are read once, products grow."""
        return max(self.decode_ms, self.pass_ms * tokens / PASS_TOKENS)


def estimate_llm(
    model: str | LlmShape,
    soc: str = "SM8750",
    *,
    precision: str = "w4a16",
    context: int = 4096,
    prompt: int = PASS_TOKENS,
    accepted: float = 1.0,
) -> LlmEstimate:
    """Modelled time to first token and tokens per second.

    ``model`` is a preset's name or a shape, ``accepted`` how many tokens a decoding pass yields (speculation).
    """
    name, shape = _found_shape(model)
    chip = find_soc(soc).name
    if precision not in _WEIGHT_BITS:
        raise InvalidArgument(f"precision is {shown(precision)}; expected one of {', '.join(_WEIGHT_BITS)}")
    for what, given in (("context", context), ("prompt", prompt)):
        number = whole_number(given)
        if number is None or number < 1:
            raise InvalidArgument(f"{what} is {shown(given)}; expected a number of tokens")
    if prompt > context:
        raise InvalidArgument(f"a prompt of {prompt} tokens does not fit a context of {context}")
    if not isinstance(accepted, int | float) or accepted < 1:
        raise InvalidArgument(f"accepted is {shown(accepted)}; expected 1 or more tokens a pass")
    made, errors = whole_fit(), _median_errors()
    decode, single = (
        made.decode_ms(shape, chip, precision, context),
        made.pass_ms(shape, chip, precision),
    )
    rate = 1e3 * accepted / decode
    spread = max(0.1, 2 * errors[0]) * (1 if chip in made.bandwidth else 3)
    read = shape.layer_weights * _WEIGHT_BITS[precision] / 8 + shape.output_weights
    retile = [shape.kv_bytes(context) / gbs / _GB * 1e3 for gbs in _RETILE_GBS]
    return LlmEstimate(
        model=name,
        soc=chip,
        precision=precision,
        context=context,
        prompt=prompt,
        tokens_per_s=rate,
        tokens_per_s_low=rate / (1 + spread),
        tokens_per_s_high=rate * (1 + spread),
        ttft_ms=single * math.ceil(prompt / PASS_TOKENS),
        pass_ms=single,
        decode_ms=decode,
        bound_by="weights" if read > shape.kv_bytes(context) else "KV cache",
        decode_error=errors[0],
        ttft_error=errors[1],
        fitted=chip in made.bandwidth,
        native_gain_ms=(min(retile), max(retile)),
    )


def _median_errors() -> tuple[float, float]:
    return _median(row.decode for row in left_out()), _median(row.first for row in left_out())


def _median(errors: Iterable[float]) -> float:
    return statistics.median(abs(error) for error in errors)


def _found_shape(model: str | LlmShape) -> tuple[str, LlmShape]:
    if isinstance(model, LlmShape):
        return "own shape", model
    found = PRESETS.get(model.lower()) if isinstance(model, str) else None
    if found is None:
        raise InvalidArgument(f"model is {shown(model)}; expected one of {', '.join(PRESETS)}, or an LlmShape")
    return model.lower(), found
