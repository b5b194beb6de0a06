"""The fit of the cost model: all parameters at once, in logarithms, with a prior on each.

Times of one network on several SoCs miss in the same direction, so a network's mean error and the spread around it
count apart; otherwise ten SoCs would make one network ten times as sure of itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cost_prior import PADDING, WORDS, factors, make_prior
from cost_slopes import time_and_slopes
from openhtp.compiler.sizes import KernelSize
from openhtp.compiler.vtcm.place import place
from openhtp.core.opcall import MATRIX_KINDS
from openhtp.core.precision import NumberFormat
from openhtp.cost.amounts import AMOUNTS, DMA_AMOUNTS, UNITS, demands, unit_of
from openhtp.hw.catalog import find_soc
from published import Latency

MEAN_SIGMA, SPREAD_SIGMA = 0.12, 0.2
# A network that is far off pulls less: some published times are cliffs that no rate explains.
_ROBUST = 1.0
_GROUPS = (64, 128, 200, 280, 400, 600, 1000, 10_000)
_COLUMNS = [np.array([unit_of(name) == unit for name in AMOUNTS]) for unit in range(UNITS)]


@dataclass(slots=True)
class _Group:
    """Networks of about as many kernels, with all their SoCs, as padded arrays."""

    rows: np.ndarray
    tables: list[np.ndarray]
    spans: list[slice]
    socs: list[np.ndarray]
    words: list[str]
    tiles: np.ndarray
    free_after: np.ndarray


class Fit:
    """Published times as arrays; ``solve`` fits any part of them."""

    def __init__(self, kernels: Mapping[str, Sequence[KernelSize]], rows: Sequence[Latency]) -> None:
        self.rows = list(rows)
        self.socs = sorted({row.soc for row in rows})
        self.prior = make_prior(self.socs)
        self.start = np.array(self.prior.start)
        self.sigma = np.array(self.prior.sigma)
        self.measured = np.array([row.us for row in rows])
        nets = sorted({(row.network, row.precision) for row in rows})
        self.net_of = np.array([nets.index((row.network, row.precision)) for row in rows])
        self.words = [word for _, word in nets]
        self.launches = np.array([self.prior.index[f"launch.{row.soc}"] for row in rows])
        self._powers = {word: np.stack([self._power(word, soc) for soc in self.socs]) for word in WORDS}
        members: dict[tuple[str, str, int], list[int]] = {}
        for number, row in enumerate(rows):
            members.setdefault((row.network, row.precision, find_soc(row.soc).vtcm_bytes), []).append(number)
        binned: dict[int, list[tuple[str, str, int]]] = {}
        for key in members:
            size = len(kernels[key[0]])
            binned.setdefault(next(top for top in _GROUPS if size <= top), []).append(key)
        self._groups = [self._group(keys, members, kernels) for keys in binned.values()]

    def _group(self, keys, members, kernels) -> _Group:
        longest = max(len(kernels[network]) for network, _, _ in keys)
        tables, spans, socs, words, numbers, tiles, free_after = [], [], [], [], [], [], []
        for network, word, vtcm in keys:
            net, rows = kernels[network], members[network, word, vtcm]
            placed = place(net, [NumberFormat(word)] * len(net), vtcm)
            tables.append(_table(net, word, placed))
            spans.append(slice(len(numbers), len(numbers) + len(rows)))
            socs.append(np.array([self.socs.index(self.rows[row].soc) for row in rows]))
            words.append(word)
            numbers += rows
            short = longest - len(net)
            tiles += [np.pad(np.array(placed.tiles, float), (0, short), constant_values=1)] * len(rows)
            free_after += [np.pad(np.array(placed.free_after), (0, short), constant_values=-1)] * len(rows)
        return _Group(np.array(numbers), tables, spans, socs, words, np.array(tiles), np.array(free_after))

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
        prices = {word: np.exp(powers @ x) for word, powers in self._powers.items()}
        for group in self._groups:
            busy = np.zeros((UNITS, *group.tiles.shape))
            for table, span, socs, word in zip(group.tables, group.spans, group.socs, group.words, strict=True):
                price = prices[word][socs]
                for unit, columns in enumerate(_COLUMNS):
                    busy[unit, span, : len(table)] = price[:, columns] @ table[:, columns].T
            found, slope = time_and_slopes(busy, group.tiles, group.free_after)
            times[group.rows] = found
            for table, span, socs, word in zip(group.tables, group.spans, group.socs, group.words, strict=True):
                by_amount = np.zeros((len(socs), len(AMOUNTS)))
                for unit, columns in enumerate(_COLUMNS):
                    by_amount[:, columns] = slope[unit, span, : len(table)] @ table[:, columns]
                by_amount *= prices[word][socs]
                slopes[group.rows[span]] = np.einsum("ra,rap->rp", by_amount, self._powers[word][socs])
        launch = np.exp(x[self.launches])
        slopes[np.arange(len(times)), self.launches] += launch
        return times + launch, slopes

    def solve(self, used: np.ndarray, x: np.ndarray | None = None, most: int = 30) -> np.ndarray:
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
            if gain < 3e-4:
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
        weight = (1 + (mean / (2 * MEAN_SIGMA)) ** 2) ** -_ROBUST / MEAN_SIGMA
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

    def cross_validate(self, x: np.ndarray | None = None) -> np.ndarray:
        """Logarithm of modelled over measured time, each family predicted by a fit without it.

        Every fit starts from the prior: one that starts from the fit of everything would have seen the family.
        """
        families = np.array([row.family for row in self.rows])
        errors = np.zeros(len(self.rows))
        for family in sorted(set(families)):
            out = families == family
            times, _ = self.predict(self.solve(~out, x))
            errors[out] = np.log(times / self.measured)[out]
        return errors


def _table(net: Sequence[KernelSize], word: str, placed) -> np.ndarray:
    """Amounts of a network, kernels by amounts, in units whose prices are microseconds."""
    table = np.zeros((len(net), len(AMOUNTS)))
    formats = [NumberFormat(word)] * len(net)
    for row, amounts in zip(table, demands(net, formats, placed, PADDING), strict=True):
        for name, amount in amounts.items():
            row[AMOUNTS.index(name)] = amount * (1e3 if name in (*MATRIX_KINDS, "weights", *DMA_AMOUNTS) else 1.0)
    return table
