"""How an exported model is stored: what each precision means, and encodings from ranges seen in text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from openhtp.core.checks import shown
from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument
from openhtp.core.quant import ScaleOffset
from openhtp.llm.model import Array, Llama, Thin
from openhtp.llm.rounding import INPUTS, Moments

Range = tuple[float, float]
Ranges = Mapping[str, Range]


@dataclass(frozen=True, slots=True)
class Precision:
    """Bits of weights in the layers, and the type of everything between ops. The output matrix has 8 bits."""

    name: str
    weight_bits: int
    activation: DType


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
# What 16 bits have to spare is given to values that calibration did not see.
_MARGIN_16 = 0.5
KV_ZERO = 128
_MULTIPLIED = frozenset(INPUTS.values())
# Texts that a model writes to be calibrated with, and their tokens.
_SAMPLED_TEXTS, _SAMPLED_TOKENS = 8, 256


def precision_named(name: object) -> Precision:
    """The precision, by name."""
    found = PRECISIONS.get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidArgument(f"precision is {shown(name)}; expected one of {', '.join(PRECISIONS)}")
    return found


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
    """What calibration found: ranges of all tensors, and second moments of what is multiplied with weights."""

    ranges: Ranges
    moments: Moments
    tokens: int


def calibration_windows(model: Llama, text: Sequence[int] | None, window: int) -> list[list[int]]:
    """A text in pieces that are run at once. Without one, what the model itself writes: no data is needed then."""
    if text is None:
        return sampled_texts(model, _SAMPLED_TEXTS, min(window, _SAMPLED_TOKENS))
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

    ``moments``: also how inputs of weights go together. ``adapters`` are all those that it may run with, that of
    zeros included.
    """
    ranges: dict[str, Range] = {}
    squares: dict[str, npt.NDArray[np.float64]] = {}

    def watch(name: str, values: Array) -> Array:
        low, high = ranges.get(name, (0.0, 0.0))
        ranges[name] = min(low, float(values.min())), max(high, float(values.max()))
        if moments and name.rpartition(".")[2] in _MULTIPLIED:
            found = (values.T @ values).astype(np.float64)
            squares[name] = squares[name] + found if name in squares else found
        return values

    runs = [(added, ids) for added in adapters or ({},) for ids in windows]
    for done, (added, ids) in enumerate(runs, 1):
        model.forward(ids, watch=watch, added=added)
        if progress is not None:
            progress(done / len(runs))
    return Seen(ranges, squares, sum(len(ids) for _, ids in runs))


def sampled_texts(model: Llama, texts: int, count: int, seed: int = 0) -> list[list[int]]:
    """Tokens that the model writes by itself, from random starts, ``count`` for each of some texts."""
    rng = np.random.default_rng(seed)
    found = [[int(token)] for token in rng.integers(model.config.vocab, size=texts)]
    past = None
    while len(found[0]) < count:
        logits, past = model.forward([ids[-1] for ids in found], past, abreast=True)
        power = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
        for ids, row in zip(found, power, strict=True):
            ids.append(int(rng.choice(len(row), p=row / row.sum())))
    return found
