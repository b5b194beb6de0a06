"""Rotary positions: how fast each pair of a head's elements turns, and how checkpoints stretch it for long texts.

Formulas are those of the ``transformers`` package, whose names the kinds of stretching have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.checks import items_of, real_number, shown, whole_number
from openhtp.core.errors import BadModel, UnsupportedFeature
from openhtp.core.quant import ScaleOffset

_KINDS = ("llama3", "linear", "yarn", "longrope")
# Turns within the original context, between which YaRN passes from stretched to plain frequencies.
_YARN_SLOW, _YARN_FAST = 1.0, 32.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """The stretching of rotary frequencies, for contexts longer than those of a model's first training."""

    factor: float
    # Turns within the original context: frequencies of fewer turns are stretched, of more turns are left alone.
    low: float = 1.0
    high: float = 2.0
    # Tokens.
    original: float
    kind: str = "llama3"
    # YaRN passes from stretched to plain frequencies between whole pairs, or exactly where the turns say.
    truncate: bool = True
    # By how much cosines and sines are multiplied.
    attention: float = 1.0
    # LongRoPE: what each frequency is divided by, in texts within the original context and in longer ones.
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("factor", "low", "high", "original", "attention"):
            require_positive(f"rope scaling's {name}", getattr(self, name))
        for factor in (*self.short, *self.long):
            require_positive("a factor of rope scaling", factor)
        if not float(self.original).is_integer():
            raise BadModel(f"rope scaling has {self.original} as original; expected a whole number")
        if self.low == self.high:
            raise BadModel(f"rope scaling goes from {self.low:g} to {self.high:g}; expected two numbers")

    def stretched(self, plain: npt.NDArray[np.float64], theta: float, reach: int) -> npt.NDArray[np.float64]:
        """Frequencies of a text that has up to ``reach`` tokens."""
        if self.kind == "longrope":
            factors = self.long if reach > self.original else self.short
            return np.asarray(plain / np.array(factors, np.float64))
        if self.kind == "linear":
            return np.asarray(plain / self.factor)
        kept = self._yarn_share(len(plain), theta) if self.kind == "yarn" else self._llama_share(plain)
        return np.asarray(plain * (kept + (1.0 - kept) / self.factor))

    def _llama_share(self, plain: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        turns = self.original * plain / (2 * np.pi)
        return np.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)

    def _yarn_share(self, pairs: int, theta: float) -> npt.NDArray[np.float64]:
        def pair_of(turns: float) -> float:
            return pairs * math.log(self.original / (turns * 2 * math.pi)) / math.log(theta)

        first, last = pair_of(self.high), pair_of(self.low)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        return np.asarray(1.0 - np.clip((np.arange(pairs) - first) / max(last - first, 0.001), 0.0, 1.0))


def frequencies(theta: float, head_dim: int, scaling: RopeScaling | None, reach: int) -> npt.NDArray[np.float64]:
    """Radians a token for each pair of a head's elements, in a text of up to ``reach`` tokens."""
    plain = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    return plain if scaling is None else scaling.stretched(plain, theta, reach)


def stored_turns(
    angles: npt.NDArray[np.float64], quant: ScaleOffset, kind: np.dtype[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Cosines and sines of positions as graphs get them: cut off to whole steps, as Genie does.

    So the same bundle writes the same text here and under Genie. Rounding would be half a step closer, which no
    result shows but that of two tokens that are equally likely.
    """
    steps = (np.floor(values / quant.scale - quant.offset) for values in (np.cos(angles), np.sin(angles)))
    cos, sin = (np.clip(whole, 0, np.iinfo(kind).max).astype(kind) for whole in steps)
    return cos, sin


def scaling_from(value: Any, *, context: int, original: Any, head_dim: int) -> RopeScaling | None:
    """The stretching that ``rope_scaling`` or ``rope_parameters`` of a ``config.json`` asks for.

    ``context`` and ``original`` are the tokens that the configuration itself names.
    """
    if value is None:
        return None
    kind = value.get("rope_type", value.get("type", "default")) if isinstance(value, Mapping) else value
    kind = {"su": "longrope"}.get(kind, kind) if isinstance(kind, str) else kind
    if kind == "default":
        return None
    if kind not in _KINDS:
        raise UnsupportedFeature(f"rope scaling {shown(kind)}; expected none, or one of {', '.join(_KINDS)}")
    if kind == "linear":
        return RopeScaling(kind=kind, factor=_positive(value, "factor"), original=context)
    first = whole_number(value.get("original_max_position_embeddings") or original or context)
    if first is None or first < 2:
        raise BadModel(f"original_max_position_embeddings is {shown(first)}; expected a number of tokens")
    factor = context / first if value.get("factor") is None else _positive(value, "factor")
    if kind == "llama3":
        low, high = _positive(value, "low_freq_factor"), _positive(value, "high_freq_factor")
        return RopeScaling(factor=factor, low=low, high=high, original=first)
    attention = _attention_factor(kind, value, factor, first)
    if kind == "yarn":
        low, high = (value.get("beta_slow") or _YARN_SLOW, value.get("beta_fast") or _YARN_FAST)
        return RopeScaling(
            kind=kind,
            factor=factor,
            low=low,
            high=high,
            original=first,
            attention=attention,
            truncate=bool(value.get("truncate", True)),
        )
    short, long = (_factors(value, f"{side}_factor", head_dim // 2) for side in ("short", "long"))
    return RopeScaling(kind=kind, factor=factor, original=first, attention=attention, short=short, long=long)


def _attention_factor(kind: str, value: Mapping[str, Any], factor: float, original: int) -> float:
    if value.get("attention_factor") is not None:
        return _positive(value, "attention_factor")
    if factor <= 1:
        return 1.0
    if kind == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(original))
    if value.get("mscale") and value.get("mscale_all_dim"):
        grown, shrunk = _positive(value, "mscale"), _positive(value, "mscale_all_dim")
        return (0.1 * grown * math.log(factor) + 1) / (0.1 * shrunk * math.log(factor) + 1)
    return 0.1 * math.log(factor) + 1


def _factors(value: Mapping[str, Any], name: str, count: int) -> tuple[float, ...]:
    numbers = [real_number(item) for item in items_of(value.get(name)) or ()]
    if len(numbers) != count or None in numbers:
        raise BadModel(f"rope scaling's {name} is {shown(value.get(name))}; expected {count} numbers")
    return tuple(number for number in numbers if number is not None)


def _positive(value: Mapping[str, Any], name: str) -> float:
    number = real_number(value.get(name))
    if number is None or number <= 0:
        raise BadModel(f"config.json gives {name} as {shown(value.get(name))}; expected a number above 0")
    return number


def require_positive(what: str, value: object) -> None:
    """Raise BadModel unless a number is finite and above 0."""
    number = real_number(value)
    if number is None or number <= 0:
        raise BadModel(f"{what} is {shown(value)}; expected a finite number above 0")
