"""How fast language models run: reading bounds decoding, multiplying bounds a prefill pass.

Both times are fitted to published rates (below). Every result states the error on models that had no part in the
fit. Everything here is modelled.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from openhtp.core.checks import items_of, shown, whole_number
from openhtp.core.errors import InvalidArgument
from openhtp.core.precision import NumberFormat
from openhtp.cost.energy import DDR_PJ_PER_BYTE, MAC_PJ, VTCM_PJ_PER_BYTE
from openhtp.cost.rates import find_rates, fitted_parameters
from openhtp.hw.catalog import find_soc

# Bits of weights in the layers.
WEIGHT_BITS = {"w4a16": 4, "w8a16": 8, "w4fp16": 4}
# Weights that are wide, and rounded with care, unless an export says otherwise: in w8a16, up to so many weights.
# To round more of them with care takes minutes.
WIDE_BY_DEFAULT = ("output", "down", "gate", "up")
MOST_CAREFUL = 100_000_000
# Bits of the second matrix that a wide weight has.
_SECOND_BITS = 4


# Savings of a native KV cache and of a masked softmax. Published rates, and so the fitted times, are of flat
# caches and added masks. The part of a time that grows with the context is divided among three kinds of work, as
# the cost model prices them. First, the cache is read. Second, a flat cache is put into the HMX's tiles in every
# pass, with all of its context, which is priced as a transpose; a native cache is in tiles already. Third, scores
# get their mask added and are exponentiated at every place; a masked softmax exponentiates those of valid places
# and only looks at the mask of others.


KV_FORMS = ("flat", "native")
_WORD = NumberFormat.W8A16.value
_MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionForm:
    """How a pass keeps its cache and masks its scores: ``valid`` places of ``context`` take part."""

    kv: str
    masked_softmax: bool
    valid: int
    context: int

    def passed_ms(self, soc: str, growing_ms: float, kv_bytes: int, scores: int) -> float:
        """The part of a pass's time that grows with the context, reduced from that of a flat cache."""
        parameters = fitted_parameters()
        rates = find_rates(find_soc(soc), parameters).rates
        price = {kind: parameters.vector[kind][_WORD] / rates.vector_speed for kind in ("add", "softmax")}
        tile_price = parameters.vector["transpose"][NumberFormat.W8A8.value] / rates.vector_speed
        reading_us = kv_bytes / rates.ddr_gbs / 1e3
        tiling_us = kv_bytes / _MILLION * tile_price
        scoring_us = scores / _MILLION * (price["add"] + price["softmax"])
        left_us = reading_us + (tiling_us if self.kv == "flat" else 0.0)
        if self.masked_softmax:
            left_us += scores / _MILLION * (price["add"] + price["softmax"] * self.valid / self.context)
        else:
            left_us += scoring_us
        return growing_ms * left_us / (reading_us + tiling_us + scoring_us)

    def token_pj(self, weight_bytes: float, kv_bytes: int, macs: float) -> float:
        """Energy of one token, for ratios alone (``energy.py``): reading weights and cache, products, tiles."""
        tiles = kv_bytes * (2 * VTCM_PJ_PER_BYTE + MAC_PJ[NumberFormat.W8A8]) if self.kv == "flat" else 0.0
        return (weight_bytes + kv_bytes) * DDR_PJ_PER_BYTE + macs * MAC_PJ[NumberFormat.W8A16] + tiles


@dataclass(frozen=True, slots=True)
class LlmShape:
    """Sizes of a decoder, and what follows from them: bytes of weights and cache, and scores."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    # Kinds of weights that have a second matrix.
    wide: tuple[str, ...] = ()

    def with_wide(self, wide: Sequence[str] | str, precision: str) -> LlmShape:
        """The same model with some wide weights; ``"auto"``: those that an export in this precision makes wide."""
        if precision not in WEIGHT_BITS:
            raise InvalidArgument(f"precision is {shown(precision)}; expected one of {', '.join(WEIGHT_BITS)}")
        if isinstance(wide, str) and wide == "auto":
            # An export counts the embedding and the output matrix, even if they are the same.
            small = self.layer_weights + 2 * self.output_weights <= MOST_CAREFUL
            return dataclasses.replace(self, wide=WIDE_BY_DEFAULT if small and precision == "w8a16" else ())
        kinds = items_of(wide, len(self.weights))
        if kinds is None or not set(kinds) <= set(self.weights):
            known = ", ".join(self.weights)
            raise InvalidArgument(f"wide is {shown(wide)}; expected auto, none or some of {known}")
        return dataclasses.replace(self, wide=tuple(sorted({str(kind) for kind in kinds})))

    @property
    def weights(self) -> dict[str, int]:
        """Numbers in the matrices of each kind, of all layers."""
        rows = self.layers * self.hidden
        queries, cache = rows * self.head_dim * self.heads, rows * self.head_dim * self.kv_heads
        sizes = {"wq": queries, "wk": cache, "wv": cache, "wo": queries, "output": self.output_weights}
        return {**sizes, **dict.fromkeys(("gate", "up", "down"), rows * self.ffn)}

    @property
    def wide_weights(self) -> int:
        """Numbers in the second matrices of wide weights."""
        return sum(self.weights[kind] for kind in self.wide)

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

    def weight_bytes(self, precision: str) -> float:
        """Bytes of weights that decoding one token reads: layers, output matrix at 8 bits, second matrices."""
        plain = self.layer_weights * WEIGHT_BITS[precision] / 8 + self.output_weights
        return plain + self.wide_weights * _SECOND_BITS / 8

    def scores(self, context: int) -> int:
        """Attention scores of one token: each head looks at every place of the cache."""
        return self.layers * self.heads * context


_LLAMA_8B = LlmShape(32, 4096, 32, 8, 128, 14336, 128256)
PRESETS: dict[str, LlmShape] = {
    "llama-3.2-1b": LlmShape(16, 2048, 32, 8, 64, 8192, 128256),
    "llama-3.2-3b": LlmShape(28, 3072, 24, 8, 128, 8192, 128256),
    "llama-3.1-8b": _LLAMA_8B,
    "llama-3-8b": _LLAMA_8B,
    "llama-3-8b-elyza": _LLAMA_8B,
    "llama-3-8b-taide": _LLAMA_8B,
    "llama-2-7b": LlmShape(32, 4096, 32, 32, 128, 11008, 32000),
    "mistral-7b-v0.3": LlmShape(32, 4096, 32, 8, 128, 14336, 32768),
    "qwen2-7b": LlmShape(28, 3584, 28, 4, 128, 18944, 152064),
    "falcon3-7b": LlmShape(28, 3072, 12, 4, 256, 23040, 131072),
    "baichuan2-7b": LlmShape(32, 4096, 32, 32, 128, 11008, 125696),
    "indus-1b": LlmShape(16, 2048, 32, 8, 64, 8192, 128256),
    "qwen2.5-0.5b": LlmShape(24, 896, 14, 2, 64, 4864, 151936),
    "qwen2.5-1.5b": LlmShape(28, 1536, 12, 2, 128, 8960, 151936),
    "qwen2.5-3b": LlmShape(36, 2048, 16, 2, 128, 11008, 151936),
    "qwen3-0.6b": LlmShape(28, 1024, 16, 8, 128, 3072, 151936),
    "qwen3-1.7b": LlmShape(28, 2048, 16, 8, 128, 6144, 151936),
    "qwen3-4b": LlmShape(36, 2560, 32, 8, 128, 9728, 151936),
    "gemma-2b": LlmShape(18, 2048, 8, 1, 256, 16384, 256000),
    "gemma-2-2b": LlmShape(26, 2304, 8, 4, 256, 9216, 256000),
    "phi-3-mini": LlmShape(32, 3072, 32, 32, 96, 8192, 32064),
}

# Rates of language models, as ``tools/llm_fit.py`` fitted them to published ones.
#
# A token takes ``(weight bytes + a * scores) / bandwidth``: weights are read once, and every head of every layer
# masks, exponentiates and adds up a score for each place of the cache, on the vector units. A pass of 128 tokens
# takes ``(weights + b * cache bytes + c) / rate``: products on the matrix unit, a flat cache that is put into its
# tiles, and what a pass costs anyway. Bandwidth and rate are per SoC; a, b and c are common to all. Which terms
# there are was chosen by how well they fit all rows; errors are those of models that had no part in the fit.

_GB = 1e9
_MILLION = 1e6

Work = Callable[[LlmShape, str, int, Sequence[float]], float]


def token_work(shape: LlmShape, precision: str, context: int, factors: Sequence[float]) -> float:
    """What decoding a token takes, in gigabytes of weights."""
    return shape.weight_bytes(precision) / _GB + factors[0] * shape.scores(context) / _MILLION


def pass_work(shape: LlmShape, precision: str, context: int, factors: Sequence[float]) -> float:
    """What a pass of 128 tokens takes, in thousand millions of weights."""
    weights = (shape.layer_weights + shape.output_weights + shape.wide_weights) / _GB
    return weights + factors[0] * shape.kv_bytes(context) / _GB + factors[1]


@dataclass(frozen=True, slots=True)
class RateLine:
    """One time: milliseconds for a unit of work by SoC, factors of its terms, and how much slower w4fp16 is."""

    work: Work
    factors: tuple[float, ...]
    slower: float
    unit_ms: dict[str, float]

    def time_ms(self, shape: LlmShape, soc: str, precision: str, context: int) -> float:
        """The time on a SoC. A SoC without published rates gets the time that others have for its bandwidth."""
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
    table = tomllib.loads(Path(__file__).with_name("llm_rates.toml").read_text(encoding="utf-8"))
    token, single = (
        RateLine(work, tuple(line["factors"]), line["slower"], line["unit_ms"])
        for work, line in ((token_work, table["token"]), (pass_work, table["pass"]))
    )
    return LlmRates(token, single, table["errors"]["decode"], table["errors"]["ttft"])


PASS_TOKENS = 128
# Of a flat cache: every pass re-tiles it, at a rate that nobody has published; this is the range assumed.
_RETILE_GBS = (20.0, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmEstimate:
    """Modelled times of a language model on a SoC. Errors are medians over models that had no part in the fit.

    ``token_energy_pj`` is for ratios between estimates alone.
    """

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
    kv: str
    token_energy_pj: float
    wide: tuple[str, ...]
    weight_bytes: int

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
    kv: str = "flat",
    masked_softmax: bool = False,
    valid: int | None = None,
    name: str | None = None,
    wide: Sequence[str] | str = (),
) -> LlmEstimate:
    """Modelled time to first token and tokens per second.

    ``model`` is a preset's name or a shape, which may have a ``name``. ``accepted`` is how many tokens a decoding
    pass yields (speculation). ``kv`` is ``flat`` or ``native``. With ``masked_softmax`` it counts how
    many places of the context are ``valid``: all of it unless given. ``wide`` is that of ``llm.export``.
    """
    title, shape = _shape_of(model)
    chip = find_soc(soc).name
    shape = shape.with_wide(wide, precision)
    _check_tokens(context, prompt)
    if not isinstance(accepted, int | float) or accepted < 1:
        raise InvalidArgument(f"accepted is {shown(accepted)}; expected 1 or more tokens a pass")
    form = _attention_form(kv, masked_softmax=masked_softmax, valid=valid, context=context)
    rates = llm_rates()
    cache, scores = shape.kv_bytes(context), shape.scores(context)
    reading, computing = (line(shape, chip, precision, 0) for line in (rates.decode_ms, rates.pass_ms))
    growing = rates.decode_ms(shape, chip, precision, context) - reading
    decode = reading + form.passed_ms(chip, growing, cache, scores)
    growing = rates.pass_ms(shape, chip, precision, context) - computing
    single = computing + form.passed_ms(chip, growing, cache, scores * PASS_TOKENS)
    rate = 1e3 * accepted / decode
    spread = max(0.1, 2 * rates.decode_error) * (1 if rates.knows(chip) else 3)
    retile = [cache / gbs / _GB * 1e3 for gbs in _RETILE_GBS]
    macs = shape.layer_weights + shape.output_weights + shape.wide_weights + 2 * scores * shape.head_dim
    return LlmEstimate(
        model=title if name is None else name,
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
        bound_by="weights" if 2 * reading > decode else "attention",
        decode_error=rates.decode_error,
        ttft_error=rates.ttft_error,
        fitted=rates.knows(chip),
        native_gain_ms=(min(retile), max(retile)),
        kv=form.kv,
        token_energy_pj=form.token_pj(shape.weight_bytes(precision), cache, macs),
        wide=shape.wide,
        weight_bytes=round(shape.weight_bytes(precision)),
    )


def _check_tokens(context: int, prompt: int) -> None:
    for what, tokens in (("context", context), ("prompt", prompt)):
        number = whole_number(tokens)
        if number is None or number < 1:
            raise InvalidArgument(f"{what} is {shown(tokens)}; expected a number of tokens")
    if prompt > context:
        raise InvalidArgument(f"a prompt of {prompt} tokens does not fit a context of {context}")


def _attention_form(kv: str, *, masked_softmax: bool, valid: int | None, context: int) -> AttentionForm:
    if kv not in KV_FORMS:
        raise InvalidArgument(f"kv is {shown(kv)}; expected {' or '.join(KV_FORMS)}")
    places = context if valid is None else whole_number(valid)
    if places is None or not 1 <= places <= context:
        raise InvalidArgument(f"valid is {shown(valid)}; expected 1 to {context} tokens, the context")
    if valid is not None and not masked_softmax:
        raise InvalidArgument("valid counts for a masked softmax alone; expected masked_softmax with it")
    return AttentionForm(kv=kv, masked_softmax=masked_softmax, valid=places, context=context)


def _shape_of(model: str | LlmShape) -> tuple[str, LlmShape]:
    if isinstance(model, LlmShape):
        return "own shape", model
    shape = PRESETS.get(model.lower()) if isinstance(model, str) else None
    if shape is None:
        raise InvalidArgument(f"model is {shown(model)}; expected one of {', '.join(PRESETS)}, or an LlmShape")
    return model.lower(), shape
