"""How an exported model is stored: what each precision means, and encodings from ranges seen in text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from openhtp.core.checks import shown
from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.llm.model import Array, Llama, Thin

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
_MARGIN_16 = 0.1
KV_ZERO = 128
_SAMPLED_TOKENS = 384


def precision_named(name: object) -> Precision:
    """The precision, by name."""
    found = PRECISIONS.get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidArgument(f"precision is {shown(name)}; expected one of {', '.join(PRECISIONS)}")
    return found


def weight_levels(weight: Array, bits: int) -> tuple[npt.NDArray[np.int8], AxisScaleOffset]:
    """A matrix [out, in] in signed steps, with one scale for each output; 4-bit steps are stored in 8 bits."""
    highest = (1 << (bits - 1)) - 1
    scales = np.maximum(np.abs(weight).max(axis=1), 1e-8) / highest
    stored = np.clip(np.rint(weight / scales[:, None]), -highest, highest).astype(np.int8)
    return stored, AxisScaleOffset(0, tuple(float(scale) for scale in scales))


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


def calibrate(
    model: Llama,
    text: Sequence[int] | None,
    *,
    window: int,
    adapters: Sequence[Mapping[str, Thin]] = (),
    progress: Callable[[float], None] | None = None,
) -> dict[str, Range]:
    """The range of every tensor over some text, by the name that it has in graphs.

    Without text, over what the model itself writes: no data is needed then. ``adapters`` are all those that it may
    run with, that of zeros included.
    """
    ids = list(sampled_text(model, _SAMPLED_TOKENS)) if text is None else [int(token) for token in text]
    if len(ids) < 2:
        raise InvalidArgument(f"calibration has {len(ids)} tokens; expected at least 2, better some thousand")
    ranges: dict[str, Range] = {}

    def watch(name: str, values: Array) -> Array:
        low, high = ranges.get(name, (0.0, 0.0))
        ranges[name] = min(low, float(values.min())), max(high, float(values.max()))
        return values

    runs = [(added, begin) for added in adapters or ({},) for begin in range(0, len(ids), window)]
    for done, (added, begin) in enumerate(runs, 1):
        model.forward(ids[begin : begin + window], watch=watch, added=added)
        if progress is not None:
            progress(done / len(runs))
    return ranges


def sampled_text(model: Llama, count: int, seed: int = 0) -> list[int]:
    """Tokens that the model writes by itself, from a random start."""
    rng = np.random.default_rng(seed)
    ids = [int(rng.integers(model.config.vocab))]
    past = None
    while len(ids) < count:
        logits, past = model.forward(ids[-1:], past)
        scaled = logits[-1].astype(np.float64)
        power = np.exp(scaled - scaled.max())
        ids.append(int(rng.choice(len(power), p=power / power.sum())))
    return ids
