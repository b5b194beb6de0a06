"""Convolutions with clamps behind them, in encodings that do and do not fit, and their exact results.

``loses`` says whether folding the clamp into the convolution changes results by more than a rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import openhtp as htp

Ints = npt.NDArray[np.int64]
Range = tuple[float, float]

SHAPE = (1, 6, 6, 16)
_INPUT: Range = (-2.56, 2.54)
_WEIGHT_SCALE = 0.01
NARROW: Range = (-1.0, 1.0)
WIDE: Range = (-16.0, 16.0)


@dataclass(frozen=True)
class Clamped:
    """A clamp, the range of the encoding before it and of that behind it."""

    name: str
    op: str
    between: Range
    result: Range
    params: dict[str, Any] = field(default_factory=dict)
    lossy_bits: tuple[int, ...] = (8, 16)
    kept: Range | None = None  # what results lie between if the clamp is folded; None if it is not

    def loses(self, bits: int) -> bool:
        return bits in self.lossy_bits

    @property
    def bounds(self) -> Range:
        return (self.params["min_value"], self.params["max_value"]) if self.params else (0.0, np.inf)


def _between(low: float, high: float) -> dict[str, Any]:
    return {"min_value": low, "max_value": high}


CLAMPED = (
    Clamped("relu that fits", "Relu", WIDE, (0.0, 4.0), lossy_bits=(), kept=(0.0, np.inf)),
    Clamped("relu behind a narrow encoding", "Relu", NARROW, (0.0, 4.0), kept=(0.0, np.inf)),
    Clamped("relu in an encoding below 0", "Relu", WIDE, (-4.0, 4.0), lossy_bits=(), kept=(0.0, np.inf)),
    Clamped("bounds that fit", "ReluMinMax", WIDE, (0.0, 6.0), _between(0.0, 6.0), (), (-np.inf, np.inf)),
    Clamped("a wider encoding", "ReluMinMax", WIDE, (0.0, 4.0), _between(0.0, 1.0), kept=(-np.inf, np.inf)),
    Clamped("an open end", "ReluMinMax", WIDE, (-4.0, 4.0), _between(0.0, 1e30), kept=(-np.inf, np.inf)),
    Clamped("bounds inside", "ReluMinMax", NARROW, (-4.0, 4.0), _between(-2.0, 2.0), lossy_bits=(16,)),
)


def encoding(span: Range, bits: int) -> htp.ScaleOffset:
    """Of a range; 0.0 is a code."""
    scale = (span[1] - span[0]) / (2**bits - 1)
    return htp.ScaleOffset(scale, round(span[0] / scale))


def _weights() -> npt.NDArray[np.int8]:
    return np.random.default_rng(0).integers(-100, 100, (1, 1, SHAPE[-1], SHAPE[-1])).astype(np.int8)


def clamped_graph(
    context: htp.Context, name: str, case: Clamped, bits: int, *, real: bool = False, **options: Any
) -> htp.Graph:
    """The two nodes, finalized; a third one makes floats of their results if they are to be ``real``."""
    graph = context.create_graph(name, **options)
    kind = f"ufixed{bits}"
    x = graph.add_tensor("x", SHAPE, kind, quant=encoding(_INPUT, bits), kind="app_write")
    weights = _weights()
    quant = htp.ScaleOffset(_WEIGHT_SCALE, 0)
    w = graph.add_tensor("w", weights.shape, "sfixed8", quant=quant, kind="static", data=weights)
    between = graph.add_tensor("between", SHAPE, kind, quant=encoding(case.between, bits))
    quant = encoding(case.result, bits)
    y = graph.add_tensor("y", SHAPE, kind, quant=quant, kind="native" if real else "app_read")
    graph.add_node(
        "Conv2d", inputs=[x, w], outputs=[between], params={"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}
    )
    graph.add_node(case.op, inputs=[between], outputs=[y], params=case.params)
    if real:
        graph.add_node(
            "Dequantize", inputs=[y], outputs=[graph.add_tensor("z", SHAPE, "float32", kind="app_read")]
        )
    graph.finalize()
    return graph


def exact_results(case: Clamped, bits: int) -> tuple[npt.NDArray[Any], tuple[Ints, Ints]]:
    """An input, and the stored results folded and apart."""
    x = np.random.default_rng(1).integers(0, 2**bits, SHAPE).astype(np.uint8 if bits == 8 else np.uint16)
    source = encoding(_INPUT, bits)
    sums = (x.astype(np.int64) + source.offset) @ _weights()[0, 0].astype(np.int64)
    real = sums * source.scale * _WEIGHT_SCALE
    between, result = encoding(case.between, bits), encoding(case.result, bits)
    rounded = (_stored(real, between, bits) + between.offset) * between.scale
    apart = _stored(np.clip(rounded, *case.bounds), result, bits)
    if case.kept is None and bits == 8:
        return x, (apart, apart)
    return x, (_stored(np.clip(real, *(case.kept or (-np.inf, np.inf))), result, bits), apart)


def _stored(real: npt.NDArray[np.float64], quant: htp.ScaleOffset, bits: int) -> Ints:
    return np.clip(np.rint(real / quant.scale) - quant.offset, 0, 2**bits - 1).astype(np.int64)
