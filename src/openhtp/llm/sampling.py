"""Choosing the next token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from openhtp.core.checks import real_number, shown, whole_number
from openhtp.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen: the likeliest if ``temperature`` is 0, else by chance among the likely ones."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        temperature, share = real_number(self.temperature), real_number(self.top_p)
        if temperature is None or temperature < 0:
            raise InvalidArgument(f"temperature is {shown(self.temperature)}; expected 0 (greedy) or more")
        if share is None or not 0 < share <= 1:
            raise InvalidArgument(f"top_p is {shown(self.top_p)}; expected a share above 0, up to 1")
        most = whole_number(self.top_k)
        if most is None or most < 0:
            raise InvalidArgument(f"top_k is {shown(self.top_k)}; expected 0 (all) or a number of tokens")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest is always taken."""
        return self.temperature == 0

    def generator(self) -> np.random.Generator:
        """The source of chance of one generation."""
        return np.random.default_rng(self.seed)


def choose(logits: npt.NDArray[np.float32], sampling: Sampling, chance: np.random.Generator) -> int:
    """One token from a row of logits."""
    if sampling.is_greedy:
        return int(np.argmax(logits))
    order = np.argsort(-logits, kind="stable")
    if sampling.top_k:
        order = order[: sampling.top_k]
    scaled = logits[order].astype(np.float64) / sampling.temperature
    power = np.exp(scaled - scaled[0])
    share = power / power.sum()
    # As many of the likeliest as make up top_p, the one that reaches it included.
    kept = int(np.searchsorted(np.cumsum(share), sampling.top_p)) + 1
    share = share[:kept] / share[:kept].sum()
    return int(order[chance.choice(len(share), p=share)])
