"""How fast language models run: decoding is bound by what it reads, a prefill pass by what it multiplies.

How long both take is fitted to published rates (``llm_rates.py``), and every result says how far off models were
that had no part in the fit. Everything here is modelled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import InvalidArgument
from openhtp.cost.llm_rates import llm_rates
from openhtp.cost.llm_shapes import PRESETS, WEIGHT_BITS, LlmShape
from openhtp.hw.catalog import find_soc

PASS_TOKENS = 128
_GB = 1e9
# Of a flat cache: every pass re-tiles it, at a rate that nobody has published; this is the range assumed.
_RETILE_GBS = (20.0, 60.0)


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
    name, shape = _shape_of(model)
    chip = find_soc(soc).name
    if precision not in WEIGHT_BITS:
        raise InvalidArgument(f"precision is {shown(precision)}; expected one of {', '.join(WEIGHT_BITS)}")
    for what, tokens in (("context", context), ("prompt", prompt)):
        number = whole_number(tokens)
        if number is None or number < 1:
            raise InvalidArgument(f"{what} is {shown(tokens)}; expected a number of tokens")
    if prompt > context:
        raise InvalidArgument(f"a prompt of {prompt} tokens does not fit a context of {context}")
    if not isinstance(accepted, int | float) or accepted < 1:
        raise InvalidArgument(f"accepted is {shown(accepted)}; expected 1 or more tokens a pass")
    rates = llm_rates()
    decode = rates.decode_ms(shape, chip, precision, context)
    single = rates.pass_ms(shape, chip, precision, context)
    rate = 1e3 * accepted / decode
    spread = max(0.1, 2 * rates.decode_error) * (1 if rates.knows(chip) else 3)
    reading = rates.decode_ms(shape, chip, precision, 0)
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
        bound_by="weights" if 2 * reading > decode else "attention",
        decode_error=rates.decode_error,
        ttft_error=rates.ttft_error,
        fitted=rates.knows(chip),
        native_gain_ms=(min(retile), max(retile)),
    )


def _shape_of(model: str | LlmShape) -> tuple[str, LlmShape]:
    if isinstance(model, LlmShape):
        return "own shape", model
    shape = PRESETS.get(model.lower()) if isinstance(model, str) else None
    if shape is None:
        raise InvalidArgument(f"model is {shown(model)}; expected one of {', '.join(PRESETS)}, or an LlmShape")
    return model.lower(), shape
