"""How an exported model is stored: precisions, encodings from ranges seen in text, and weights in steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from openhtp.core.checks import shown
from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.llm.model import Array, Llama, Thin, product_factor

Range = tuple[float, float]
Ranges = Mapping[str, Range]
Moments = Mapping[str, npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Precision:
    """Bits of weights in the layers, and the type of everything between ops. The output matrix has 8 bits."""

    name: str
    weight_bits: int
    activation: DType
    # Kinds of weights that have 12 bits instead, as two matrices of 8 and 4.
    wide: frozenset[str] = frozenset()


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("w8a16", 8, DType.UFIXED_POINT_16),
        Precision("w8a8", 8, DType.UFIXED_POINT_8),
        Precision("w4a16", 4, DType.UFIXED_POINT_16),
    )
}
# Tensors whose range is known without looking.
FIXED: Ranges = {"probabilities": (0.0, 1.0), "sigmoid": (0.0, 1.0)}
# 16 bits have steps to spare, which are left for values that calibration did not see.
_MARGIN_16 = 0.5
KV_ZERO = 128
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
_MULTIPLIED = frozenset(INPUTS.values())
# Texts that a model writes to be calibrated with, and their tokens.
_SAMPLED_TEXTS, _SAMPLED_TOKENS = 8, 256


def precision_named(name: object) -> Precision:
    """The precision, by name."""
    if not isinstance(name, str) or name not in PRECISIONS:
        raise InvalidArgument(f"precision is {shown(name)}; expected one of {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def activation_encoding(span: Range, dtype: DType) -> ScaleOffset:
    """An encoding that holds a range and 0."""
    low, high = min(span[0], 0.0), max(span[1], 0.0)
    if dtype.bits == 16 and span not in FIXED.values():
        low, high = low * (1 + _MARGIN_16), high * (1 + _MARGIN_16)
    most = (1 << dtype.bits) - 1
    scale = max(high - low, 1e-6) / most
    return ScaleOffset(scale, round(low / scale))


def kv_encoding(span: Range) -> ScaleOffset:
    """A symmetric 8-bit encoding, as native caches need it."""
    return ScaleOffset(max(-span[0], span[1], 1e-6) / 127, -KV_ZERO)


@dataclass(frozen=True, slots=True)
class Seen:
    """Results of calibration: ranges of all tensors, and second moments of the inputs of weights."""

    ranges: Ranges
    moments: Moments
    tokens: int


def calibration_windows(
    model: Llama, text: Sequence[int] | None, window: int, progress: Callable[[float], None] | None = None
) -> list[list[int]]:
    """A text in pieces that are run at once. Without a text, the model writes one itself, so no data is needed."""
    if text is None:
        return sampled_texts(model, _SAMPLED_TEXTS, min(window, _SAMPLED_TOKENS), progress=progress)
    ids = [int(token) for token in text]
    if len(ids) < 2:
        raise InvalidArgument(f"calibration has {len(ids)} tokens; expected at least 2, better some thousand")
    return [ids[begin : begin + window] for begin in range(0, len(ids), window)]


def calibrate(
    model: Llama,
    windows: Sequence[Sequence[int]],
    adapters: Sequence[Mapping[str, Thin]] = (),
    *,
    moments: bool,
    progress: Callable[[float], None] | None = None,
) -> Seen:
    """The range of every tensor over some text, by the name that it has in graphs.

    ``moments``: also how inputs of weights go together. ``adapters`` are all adapters that the model may run with,
    including the one of zeros.
    """
    ranges: dict[str, Range] = {}
    squares: dict[str, npt.NDArray[np.float64]] = {}

    def watch(name: str, values: Array) -> Array:
        low, high = ranges.get(name, (0.0, 0.0))
        ranges[name] = min(low, float(values.min())), max(high, float(values.max()))
        if moments and name.rpartition(".")[2] in _MULTIPLIED:
            squares[name] = squares.get(name, 0.0) + (values.T @ values).astype(np.float64)
        return values

    runs = [(added, ids) for added in adapters or ({},) for ids in windows]
    for done, (added, ids) in enumerate(runs, 1):
        model.forward(ids, watch=watch, added=added)
        if progress is not None:
            progress(done / len(runs))
    return Seen(ranges, squares, sum(len(ids) for _, ids in runs))


def sampled_texts(
    model: Llama, texts: int, count: int, seed: int = 0, progress: Callable[[float], None] | None = None
) -> list[list[int]]:
    """Tokens that the model writes by itself, from random starts, ``count`` for each of some texts."""
    rng = np.random.default_rng(seed)
    texts_so_far = [[int(token)] for token in rng.integers(model.config.vocab, size=texts)]
    past = None
    while len(texts_so_far[0]) < count:
        logits, past = model.forward([ids[-1] for ids in texts_so_far], past, abreast=True)
        power = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
        for ids, row in zip(texts_so_far, power, strict=True):
            ids.append(int(rng.choice(len(row), p=row / row.sum())))
        if progress is not None:
            progress(len(texts_so_far[0]) / count)
    return texts_so_far


# Weights in steps: rounded to the nearest, or so that each rounding makes up for the errors of those before it.
# Where inputs of a matrix are correlated, as they are in a text, neighbours in the same row can make up for the
# error of one weight. Weight after weight is rounded, and its error is spread over the weights to come, by the
# inverse of the inputs' second moments (known as GPTQ; arXiv 2210.17323).

_BLOCK = 64
# A share of the mean square of all inputs that is added to the moments: more of it trusts correlations less.
_LEAST_DAMPING = 0.01
_MOST_BIAS = 2**31 - 1
# Steps of 8 and of 4 bits to either side of zero.
_HIGHEST, _HIGHEST_NARROW = 127, 7


Stored = tuple[npt.NDArray[np.int8], AxisScaleOffset]


class Levels:
    """All matrices of a model in steps, each computed once for all graphs."""

    def __init__(self, model: Llama, moments: Moments, tokens: int) -> None:
        """``moments`` of the inputs, by their names, over ``tokens`` tokens.

        Without them, weights are rounded to the nearest.
        """
        self._model = model
        self._moments = moments
        self._tokens = tokens
        self._known: dict[tuple[str, int], Stored] = {}

    def of(self, name: str, bits: int) -> Stored:
        """A matrix [out, in] in signed steps, with one scale for each output; 4-bit steps are stored in 8 bits."""
        if (name, bits) not in self._known:
            factor = np.float32(product_factor(name, self._model.config))
            self._known[name, bits] = self._rounded(name, self._model.weights[name] * factor, bits)
        return self._known[name, bits]

    def halves_of(self, name: str) -> tuple[Stored, Stored]:
        """A matrix as the sum of two, in steps of 8 and of 4 bits: the second has what the first leaves."""
        matrix = self._model.weights[name] * np.float32(product_factor(name, self._model.config))
        high = _nearest(matrix, _HIGHEST)
        left = matrix - high[0] * np.array(high[1].scales, np.float32)[:, None]
        return high, _nearest(left, _HIGHEST_NARROW)

    def longest_row(self, name: str) -> float:
        """The largest sum of a row of a matrix's second half, without signs."""
        stored, quant = self.halves_of(name)[1]
        return float((np.abs(stored.astype(np.int64)).sum(axis=1) * np.array(quant.scales)).max())

    def bias_of(
        self, name: str, quant: AxisScaleOffset, input_scale: float
    ) -> tuple[npt.NDArray[np.int32], AxisScaleOffset]:
        """A matrix's bias in steps of its products, for the scales of the matrix and that of its input."""
        scales = np.array(quant.scales) * input_scale
        factor = product_factor(name, self._model.config)
        steps = np.rint(self._model.weights[f"{name}_bias"].astype(np.float64) * factor / scales)
        stored = np.clip(steps, -_MOST_BIAS, _MOST_BIAS).astype(np.int32)
        return stored, AxisScaleOffset(0, tuple(float(scale) for scale in scales))

    def _rounded(self, name: str, matrix: Array, bits: int) -> Stored:
        highest = (1 << (bits - 1)) - 1
        scales = np.maximum(np.abs(matrix).max(axis=1), 1e-8) / highest
        layer, _, kind = name.rpartition(".")
        moments = self._moments.get(f"{layer}.{INPUTS[kind]}" if layer else INPUTS[kind])
        steps = matrix / scales[:, None]
        if moments is not None:
            steps = made_up_for(steps, moments, highest, max(_LEAST_DAMPING, len(moments) / self._tokens))
        stored = np.clip(np.rint(steps), -highest, highest).astype(np.int8)
        return stored, AxisScaleOffset(0, tuple(float(scale) for scale in scales))


def _nearest(matrix: Array, highest: int) -> Stored:
    """A matrix in up to ``highest`` steps to either side, each weight rounded to the nearest."""
    scales = np.maximum(np.abs(matrix).max(axis=1), 1e-8) / highest
    stored = np.rint(matrix / scales[:, None]).astype(np.int8)
    return stored, AxisScaleOffset(0, tuple(float(scale) for scale in scales))


def made_up_for(steps: Array, moments: npt.NDArray[np.float64], highest: int, damping: float) -> Array:
    """Whole steps for weights [out, in] that are given in steps, errors of each spread over those after it."""
    square = moments + np.eye(len(moments)) * max(float(np.diag(moments).mean()) * damping, 1e-12)
    # Weights of the largest inputs come first: then most others can make up for their errors.
    order = np.argsort(-np.diag(square), kind="stable")
    spread = np.linalg.cholesky(np.linalg.inv(square[np.ix_(order, order)])).T.astype(np.float32)
    rest = np.ascontiguousarray(steps[:, order], np.float32)
    for begin in range(0, rest.shape[1], _BLOCK):
        end = min(begin + _BLOCK, rest.shape[1])
        block, errors = rest[:, begin:end], np.empty((len(rest), end - begin), np.float32)
        for column in range(end - begin):
            row = spread[begin + column, begin:end]
            whole = np.clip(np.rint(block[:, column]), -highest, highest)
            errors[:, column] = (block[:, column] - whole) / row[column]
            block[:, column + 1 :] -= errors[:, column, None] * row[column + 1 :]
            block[:, column] = whole
        rest[:, end:] -= errors @ spread[begin:end, end:]
    in_place = np.empty_like(rest)
    in_place[:, order] = rest
    return in_place
