"""Weights in steps: to the nearest, or so that what one rounding does to the result is made up for by the next.

Where inputs of a matrix go together, as they do in a text, an error in one weight can be taken back by its
neighbours in the same row. Weight after weight is rounded, and what that changed is spread over those to come, by
the inverse of the inputs' second moments (known as GPTQ; arXiv 2210.17323).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from openhtp.core.quant import AxisScaleOffset
from openhtp.llm.model import Array, Llama, product_factor

Moments = Mapping[str, npt.NDArray[np.float64]]

# Which tensor a matrix is multiplied with.
INPUTS = {
    "wq": "attention_norm_out",
    "wk": "attention_norm_out",
    "wv": "attention_norm_out",
    "wo": "attended",
    "gate": "ffn_norm_out",
    "up": "ffn_norm_out",
    "down": "inner",
    "output": "norm_out",
}
_BLOCK = 64
# Of the mean square of all inputs: how sure one has to be that some go together. More with little text.
_LEAST_DAMPING = 0.01


class Levels:
    """All matrices of a model in steps, each worked out once, whichever graphs ask for it."""

    def __init__(self, model: Llama, moments: Moments, tokens: int) -> None:
        """``moments`` of the inputs, by their names, over so many tokens; without them, steps are the nearest."""
        self._model = model
        self._moments = moments
        self._tokens = tokens
        self._known: dict[tuple[str, int], tuple[npt.NDArray[np.int8], AxisScaleOffset]] = {}

    def of(self, name: str, bits: int) -> tuple[npt.NDArray[np.int8], AxisScaleOffset]:
        """A matrix [out, in] in signed steps, with one scale for each output; 4-bit steps are stored in 8 bits."""
        if (name, bits) not in self._known:
            factor = np.float32(product_factor(name, self._model.config))
            self._known[name, bits] = self._rounded(name, self._model.weights[name] * factor, bits)
        return self._known[name, bits]

    def _rounded(self, name: str, matrix: Array, bits: int) -> tuple[npt.NDArray[np.int8], AxisScaleOffset]:
        highest = (1 << (bits - 1)) - 1
        scales = np.maximum(np.abs(matrix).max(axis=1), 1e-8) / highest
        place, _, kind = name.rpartition(".")
        moments = self._moments.get(f"{place}.{INPUTS[kind]}" if place else INPUTS[kind])
        steps = matrix / scales[:, None]
        if moments is not None:
            steps = made_up_for(steps, moments, highest, max(_LEAST_DAMPING, len(moments) / self._tokens))
        stored = np.clip(np.rint(steps), -highest, highest).astype(np.int8)
        return stored, AxisScaleOffset(0, tuple(float(scale) for scale in scales))


def made_up_for(steps: Array, moments: npt.NDArray[np.float64], highest: int, damping: float) -> Array:
    """Whole steps for weights [out, in] that are given in steps, errors of each spread over those after it."""
    square = moments + np.eye(len(moments)) * max(float(np.diag(moments).mean()) * damping, 1e-12)
    # What matters most first: then there are most others to make up for it.
    order = np.argsort(-np.diag(square), kind="stable")
    spread = np.linalg.cholesky(np.linalg.inv(square[np.ix_(order, order)])).T.astype(np.float32)
    rest = np.ascontiguousarray(steps[:, order], np.float32)
    for begin in range(0, rest.shape[1], _BLOCK):
        end = min(begin + _BLOCK, rest.shape[1])
        block, errors = rest[:, begin:end], np.empty((len(rest), end - begin), np.float32)
        for place in range(end - begin):
            row = spread[begin + place, begin:end]
            whole = np.clip(np.rint(block[:, place]), -highest, highest)
            errors[:, place] = (block[:, place] - whole) / row[place]
            block[:, place + 1 :] -= errors[:, place, None] * row[place + 1 :]
            block[:, place] = whole
        rest[:, end:] -= errors @ spread[begin:end, end:]
    found = np.empty_like(rest)
    found[:, order] = rest
    return found
