"""What is known of the chips before any time is looked at: where parameters start, how far data may move them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from openhtp.core.opcall import HELPER_KINDS, MATRIX_KINDS, VECTOR_KINDS
from openhtp.core.precision import NumberFormat
from openhtp.cost.rates import Padding
from openhtp.hw.catalog import find_soc

PADDING = Padding(rows=1.0, channels=1.0, moved=0.5)
WORDS = [precision.value for precision in NumberFormat]
# Where to start, and how far data may move it (standard deviation of the logarithm). Matrix rates, tera MAC/s:
_TMACS = {
    "SM8450": (2.6, 15), "SM8550": (5.5, 20), "SM8650": (7.5, 28), "SM8750": (9, 32), "SM8850": (11, 40),
    "SC8380XP": (5.5, 20), "SC8480XP": (11, 40), "QCS9075": (3, 19), "QCS8275": (3, 19), "SA8295P": (2.6, 12),
    "QCS6490": (1.5, 4),
}  # fmt: skip
_LAUNCH_US = {
    "SM8450": 97, "SM8550": 65, "SM8650": 59, "SM8750": 46, "SM8850": 54, "SC8380XP": 151, "SC8480XP": 142,
    "QCS9075": 130, "QCS8275": 120, "SA8295P": 212, "QCS6490": 214,
}  # fmt: skip
_VECTOR_SPEED = {
    "SM8450": 0.5, "SM8550": 0.7, "SM8650": 1, "SM8750": 1.4, "SM8850": 1.8, "SC8380XP": 0.65, "SC8480XP": 1.4,
    "QCS9075": 0.65, "QCS8275": 0.7, "SA8295P": 0.5, "QCS6490": 0.3,
}  # fmt: skip
# Factors to a plain convolution. One of three dimensions adds up a result of each plane of its window. In 8 bits,
# matrix products were measured to be several times slower than it.
_MATRIX = {
    "stem": (3, 0.6), "group": (1.5, 0.4), "fully_connected": (1, 0.4), "matmul": (2, 0.4), "dilated": (1.5, 0.5),
    "conv3d": (1.4, 0.3),
}  # fmt: skip
_SLOW_IN_8_BITS = {"fully_connected": 4.5, "matmul": 4.5}
# Microseconds for a million elements of one byte on an SM8650. The document's showcase has Sub, Mul, Div and Add
# at 2.9 to 1 to 7.2 to 0.7.
_VECTOR = {
    "add": 2, "subtract": 8, "multiply": 3, "divide": 20, "affine": 3, "clamp": 2, "prelu": 6, "unary": 8,
    "silu": 14, "softmax": 30, "norm": 30, "batchnorm": 6, "pool": 0.6, "reduce": 10, "resize": 15,
    "depthwise": 1.3, "move": 5, "concat": 4, "gather": 10, "transpose": 20, "permute": 10, "reshape": 1,
    "image_norm": 300, "image_layout": 20, "convert": 1.5, "stem_pack": 3,
}  # fmt: skip
# Kinds whose cost in each precision is not just that of their bytes.
_OWN_PRECISION = {
    "silu",
    "depthwise",
    "concat",
    "batchnorm",
    "transpose",
    "permute",
    "softmax",
    "norm",
    "image_norm",
}
_OWN_SIGMA = 0.35
# In fixed point a scale and a shift for each channel are computed in 32 bits, whatever is stored.
# A softmax or a norm of 16 bits looks its functions up.
_OWN_START = {"batchnorm.w8a8": 5.0, "batchnorm.w8a16": 2.0, "softmax.w8a16": 0.6, "norm.w8a16": 0.7}
# So it may be a look-up or a polynomial, and precisions say little about each other.
_FREE = {"softmax.float": 0.5, "softmax.w8a16": 0.5, "norm.w8a16": 0.35}


# How much of these deviations data may use: of what belongs to a chip, and of what belongs to a kind of op. Chosen
# on one half of the families (docs/cost-model.md).
_OF_SOCS, _OF_KINDS = 0.5, 0.7


@dataclass(slots=True)
class Prior:
    """Parameters by name: where they start and how far they may go."""

    index: dict[str, int] = field(default_factory=dict)
    start: list[float] = field(default_factory=list)
    sigma: list[float] = field(default_factory=list)

    def add(self, name: str, value: float, sigma: float) -> None:
        """Add one."""
        self.index[name] = len(self.start)
        self.start.append(np.log(value))
        self.sigma.append(sigma)


def make_prior(socs: Sequence[str]) -> Prior:
    """All parameters with their priors."""
    prior = Prior()
    for soc in socs:
        prior.add(f"launch.{soc}", _LAUNCH_US[soc], 0.2 * _OF_SOCS)
        prior.add(f"float.{soc}", _TMACS[soc][0], 0.5 * _OF_SOCS)
        prior.add(f"w8a8.{soc}", _TMACS[soc][1], 0.5 * _OF_SOCS)
        prior.add(f"w8a16.{soc}", 0.5, 0.2 * _OF_SOCS)
        prior.add(f"speed.{soc}", _VECTOR_SPEED[soc], 0.5 * _OF_SOCS)
        prior.add(f"ddr.{soc}", find_soc(soc).dma_gbs, 0.4 * _OF_SOCS)
    _add_kinds(prior)
    return prior


def _add_kinds(prior: Prior) -> None:
    """What belongs to no chip."""
    prior.add("wide.float", 2, 0.3 * _OF_KINDS)
    # Results of 16 bits are made in 32, which is four times the bytes, and scaled; what only moves costs twice.
    prior.add("wide.w8a16", 3.4, 0.3 * _OF_KINDS)
    prior.add("half", 1, 0.3 * _OF_KINDS)
    prior.add("groups", 0.2, 0.9 * _OF_KINDS)
    prior.add("spill", 0.8, 0.4 * _OF_KINDS)
    # Weights lie one after the other, so their transfers are the longest.
    prior.add("streamed", 0.9, 0.2 * _OF_KINDS)
    prior.add("edge", 2, 0.7 * _OF_KINDS)
    # A scalar thread of about 1.5 GHz, ten cycles for each addition.
    prior.add("scalar", 7000, 0.5 * _OF_KINDS)
    for kind, (value, sigma) in _MATRIX.items():
        prior.add(kind, value, sigma * _OF_KINDS)
        for word in WORDS:
            slow = _SLOW_IN_8_BITS.get(kind, 1.0) if word == "w8a8" else 1.0
            prior.add(f"{kind}.{word}", slow, 0.3 * _OF_KINDS)
    for kind, value in _VECTOR.items():
        prior.add(kind, value, 0.6 * _OF_KINDS)
        for word in WORDS if kind in _OWN_PRECISION else ():
            name = f"{kind}.{word}"
            prior.add(name, _OWN_START.get(name, 1.0), _FREE.get(name, _OWN_SIGMA * _OF_KINDS))
    for word in WORDS:
        prior.add(f"op.{word}", 0.4, 0.4 * _OF_KINDS)
        prior.add(f"matrix.{word}", 1.0, 0.6 * _OF_KINDS)


# From this architecture on, the vector unit is at home in half precision.
_HALF_SINCE = 73


def is_slow_in_half(soc: str) -> bool:
    """Whether half precision costs the SoC's vector unit more than its bytes."""
    return find_soc(soc).fp16 and find_soc(soc).arch < _HALF_SINCE


def factors(amount: str, word: str, soc: str) -> list[tuple[str, int]]:
    """Which parameters make the price of an amount, and to which power."""
    if amount in MATRIX_KINDS:
        found = [(f"{'float' if word == 'float' else 'w8a8'}.{soc}", -1)]
        found += [(f"w8a16.{soc}", -1)] if word == "w8a16" else []
        return found + ([] if amount == "conv" else [(amount, 1), (f"{amount}.{word}", 1)])
    if amount in (*VECTOR_KINDS, *HELPER_KINDS):
        found = [(amount, 1), (f"speed.{soc}", -1)]
        found += [] if word == "w8a8" else [(f"wide.{word}", 1)]
        found += [("half", 1)] if word == "float" and is_slow_in_half(soc) else []
        return found + ([(f"{amount}.{word}", 1)] if amount in _OWN_PRECISION else [])
    if amount in _OF_BYTES:
        return [(f"ddr.{soc}", -1), *((name, 1) for name in _OF_BYTES[amount])]
    if amount == "launch":
        # A kernel is started by a thread of no vector unit, and takes as long on every chip.
        return [(f"op.{word}", 1)]
    return [(f"matrix.{word}" if amount == "matrices" else amount, 1), (f"speed.{soc}", -1)]


_OF_BYTES = {"weights": ["streamed"], "edge_dma": [], "spill": ["spill"]}
