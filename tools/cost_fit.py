"""The fit of the cost model: all parameters at once, in logarithms, with a prior on each.

Times of one network on several SoCs miss in the same direction, so a network's mean error and the spread around it
count apart; otherwise ten SoCs would make one network ten times as sure of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from published_latencies import Latency

from openhtp.core.kinds import HELPER_KINDS, MATRIX_KINDS, VECTOR_KINDS
from openhtp.cost.demand import AMOUNTS, demand_of
from openhtp.cost.number_format import NumberFormat
from openhtp.cost.rates import Padding
from openhtp.cost.sizes import KernelSize
from openhtp.hw.catalog import find_soc

PADDING = Padding(rows=0.5, channels=1.0, vector=0.2)
OVERLAP = 2.0
MEAN_SIGMA, SPREAD_SIGMA = 0.25, 0.2
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
# Factors to a plain convolution. In 8 bits, matrix products were measured to be several times slower than it.
_MATRIX = {
    "stem": (3, 0.6), "group": (1.5, 0.4), "fully_connected": (1, 0.4), "matmul": (2, 0.4), "dilated": (1.5, 0.5)
}  # fmt: skip
_SLOW_IN_8_BITS = {"fully_connected": 3.0, "matmul": 3.0}
# Microseconds for a million elements of one byte on an SM8650.
_VECTOR = {
    "add": 2, "multiply": 3, "affine": 3, "clamp": 2, "unary": 4, "silu": 8, "softmax": 30, "norm": 30,
    "batchnorm": 6, "pool": 0.6, "reduce": 10, "resize": 15, "depthwise": 1.3, "move": 5, "concat": 4,
    "gather": 10, "transpose": 20, "reshape": 1, "image_norm": 300, "image_layout": 20, "convert": 1.5,
    "stem_pack": 3,
}  # fmt: skip
# Kinds whose cost in each precision is not just that of their bytes.
_OWN_PRECISION = {"silu", "depthwise", "concat", "batchnorm", "transpose", "softmax", "norm", "image_norm"}
_OWN_SIGMA = 0.35


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
        prior.add(f"launch.{soc}", _LAUNCH_US[soc], 0.2)
        prior.add(f"float.{soc}", _TMACS[soc][0], 0.5)
        prior.add(f"w8a8.{soc}", _TMACS[soc][1], 0.5)
        prior.add(f"w8a16.{soc}", 0.5, 0.2)
        prior.add(f"speed.{soc}", _VECTOR_SPEED[soc], 0.5)
        prior.add(f"ddr.{soc}", find_soc(soc).dma_gbs, 0.2)
    prior.add("wide.float", 2, 0.3)
    prior.add("wide.w8a16", 2, 0.3)
    prior.add("spill", 0.5, 0.5)
    prior.add("edge", 2, 0.7)
    for kind, (value, sigma) in _MATRIX.items():
        prior.add(kind, value, sigma)
        for word in WORDS:
            slow = _SLOW_IN_8_BITS.get(kind, 1.0) if word == "w8a8" else 1.0
            prior.add(f"{kind}.{word}", slow, 0.3)
    for kind, value in _VECTOR.items():
        prior.add(kind, value, 0.4 if kind == "transpose" else 0.6)
        for word in WORDS if kind in _OWN_PRECISION else ():
            prior.add(f"{kind}.{word}", 1, _OWN_SIGMA)
    for word in WORDS:
        prior.add(f"op.{word}", 0.6, 0.4)
    return prior


def factors(amount: str, word: str, soc: str) -> list[tuple[str, int]]:
    """Which parameters make the price of an amount, and to which power."""
    if amount in MATRIX_KINDS:
        found = [(f"{'float' if word == 'float' else 'w8a8'}.{soc}", -1)]
        found += [(f"w8a16.{soc}", -1)] if word == "w8a16" else []
        return found + ([] if amount == "conv" else [(amount, 1), (f"{amount}.{word}", 1)])
    if amount in (*VECTOR_KINDS, *HELPER_KINDS):
        found = [(amount, 1), (f"speed.{soc}", -1)]
        found += [] if word == "w8a8" else [(f"wide.{word}", 1)]
        return found + ([(f"{amount}.{word}", 1)] if amount in _OWN_PRECISION else [])
    if amount in ("weights", "spill"):
        return [(f"ddr.{soc}", -1), *([("spill", 1)] if amount == "spill" else [])]
    return [("edge" if amount == "edge" else f"op.{word}", 1), (f"speed.{soc}", -1)]


class Fit:
    """Published times as arrays; ``solve`` fits any part of them."""

    def __init__(self, kernels: dict[str, list[KernelSize]], rows: Sequence[Latency]) -> None:
        self.rows = list(rows)
        self.socs = sorted({row.soc for row in rows})
        self.prior = make_prior(self.socs)
        self.start = np.array(self.prior.start)
        self.sigma = np.array(self.prior.sigma)
        self.measured = np.array([row.us for row in rows])
        nets = sorted({(row.network, row.precision) for row in rows})
        self.net_of = np.array([nets.index((row.network, row.precision)) for row in rows])
        self.soc_of = np.array([self.socs.index(row.soc) for row in rows])
        self.words = [word for _, word in nets]
        self._nets = [kernels[network] for network, _ in nets]
        self._tables = {
            vtcm: [self._table(net, word, vtcm) for net, word in zip(self._nets, self.words, strict=True)]
            for vtcm in {find_soc(soc).vtcm_bytes for soc in self.socs}
        }
        self._powers = {word: [self._power(word, soc) for soc in self.socs] for word in WORDS}

    def _table(self, net: list[KernelSize], word: str, vtcm_bytes: int) -> np.ndarray:
        table = np.zeros((len(net), len(AMOUNTS)))
        for row, kernel in zip(table, net, strict=True):
            for name, amount in demand_of(kernel, NumberFormat(word), vtcm_bytes, PADDING).items():
                row[AMOUNTS.index(name)] = amount * (1e3 if name in (*MATRIX_KINDS, "weights", "spill") else 1.0)
        table, counts = np.unique(table, axis=0, return_counts=True)
        return np.column_stack([table, counts])

    def _power(self, word: str, soc: str) -> np.ndarray:
        power = np.zeros((len(AMOUNTS), len(self.start)))
        for row, amount in zip(power, AMOUNTS, strict=True):
            for name, exponent in factors(amount, word, soc):
                row[self.prior.index[name]] += exponent
        return power

    def predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Modelled time of every row, and its derivatives."""
        times = np.empty(len(self.rows))
        slopes = np.empty((len(self.rows), len(x)))
        for number, (net, soc) in enumerate(zip(self.net_of, self.soc_of, strict=True)):
            word, name = self.words[net], self.socs[soc]
            table = self._tables[find_soc(name).vtcm_bytes][net]
            power = self._powers[word][soc]
            time, slope = network_time(table[:, :-1] * np.exp(power @ x), table[:, -1])
            launch = self.prior.index[f"launch.{name}"]
            times[number] = time + np.exp(x[launch])
            slopes[number] = slope @ power
            slopes[number, launch] += np.exp(x[launch])
        return times, slopes

    def solve(self, used: np.ndarray, x: np.ndarray | None = None, most: int = 20) -> np.ndarray:
        """Fit the rows in ``used`` (Levenberg and Marquardt), from the prior or from ``x``."""
        x = self.start.copy() if x is None else x
        damping = 1e-2
        misses, slopes = self._system(x, used)
        for _ in range(most):
            square, gradient = slopes.T @ slopes, slopes.T @ misses
            for _ in range(6):
                step = -np.linalg.solve(square + damping * np.diag(np.diag(square)), gradient)
                moved = x + np.clip(step, -0.7, 0.7)
                next_misses, next_slopes = self._system(moved, used)
                if next_misses @ next_misses < misses @ misses:
                    break
                damping *= 4
            else:
                return x
            gain = 1 - (next_misses @ next_misses) / (misses @ misses)
            x, misses, slopes, damping = moved, next_misses, next_slopes, damping / 4
            if gain < 1e-3:
                break
        return x

    def _system(self, x: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        times, slopes = self.predict(x)
        nets = self.net_of[used]
        errors = np.log(times / self.measured)[used]
        slopes = (slopes / times[:, None])[used]
        counts = np.maximum(1, np.bincount(nets, minlength=len(self.words)))
        mean = np.bincount(nets, errors, minlength=len(self.words)) / counts
        mean_slopes = np.zeros((len(self.words), len(x)))
        np.add.at(mean_slopes, nets, slopes)
        mean_slopes /= counts[:, None]
        # A network that is far off pulls less, so that one oddity does not bend all parameters.
        weight = (1 + (mean / (2 * MEAN_SIGMA)) ** 2) ** -0.25 / MEAN_SIGMA
        return (
            np.concatenate([weight * mean, (errors - mean[nets]) / SPREAD_SIGMA, (x - self.start) / self.sigma]),
            np.concatenate(
                [
                    weight[:, None] * mean_slopes,
                    (slopes - mean_slopes[nets]) / SPREAD_SIGMA,
                    np.diag(1 / self.sigma),
                ]
            ),
        )

    def cross_validate(self) -> np.ndarray:
        """Logarithm of modelled over measured time, each family predicted by a fit without it.

        Every fit starts from the prior: one that starts from the fit of everything would have seen the family.
        """
        families = np.array([row.family for row in self.rows])
        errors = np.zeros(len(self.rows))
        for family in sorted(set(families)):
            out = families == family
            times, _ = self.predict(self.solve(~out))
            errors[out] = np.log(times / self.measured)[out]
        return errors


_HMX = np.isin(AMOUNTS, MATRIX_KINDS)
_HVX = np.isin(AMOUNTS, (*VECTOR_KINDS, *HELPER_KINDS))
_SPILL = np.isin(AMOUNTS, ("spill",))
_WEIGHTS = np.isin(AMOUNTS, ("weights",))


def network_time(costs: np.ndarray, counts: np.ndarray) -> tuple[float, np.ndarray]:
    """A network's time from the costs of its kernels, as in ``openhtp.cost.model``; with derivatives by amount."""
    busy = np.stack([costs[:, _HMX].sum(1), costs[:, _HVX].sum(1), costs[:, _SPILL].sum(1)])
    root = np.sqrt((busy**2).sum(0)) + 1e-12
    rest = ~(_HMX | _HVX | _SPILL | _WEIGHTS)
    own = counts @ (root + costs[:, rest].sum(1)) + 1e-12
    weights = counts @ costs[:, _WEIGHTS].sum(1)
    whole = (own**OVERLAP + weights**OVERLAP) ** (1 / OVERLAP)
    share = np.ones_like(costs)
    for unit, time in zip((_HMX, _HVX, _SPILL), busy, strict=True):
        share[:, unit] = (time / root)[:, None]
    slope = counts @ (costs * share)
    return whole, slope * np.where(_WEIGHTS, (weights / whole) ** (OVERLAP - 1), (own / whole) ** (OVERLAP - 1))
