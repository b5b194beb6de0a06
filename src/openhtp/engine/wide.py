"""Exact products of 16-bit numbers with 8-bit ones, by the runtime's 8-bit integer kernels.

A 16-bit number is taken apart into pieces of at most 8 bits, each piece is multiplied with the other numbers as
they are stored, and the sums are put together in float at the end. Sums of integers do not depend on their order:
a row has the same result however many others are computed with it and wherever its numbers lie, as on an HTP.
Weights stay as small as they are stored, and are read where they lie, so all graphs that have them can share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorSpec
from openhtp.engine import encoding
from openhtp.engine.encoding import integer_weights
from openhtp.engine.integer_kernels import IntegerKernels, integer_kernels
from openhtp.engine.onnx_graph import OnnxGraph

Array = npt.NDArray[Any]

_MIDDLE = 128


@dataclass(frozen=True, slots=True)
class Right:
    """What is multiplied with, [in, out]: its name, its zero point's, and its scales, one or one for each output.

    ``columns`` are the sums over its rows, where these are known.
    """

    name: str
    zero: str
    scales: npt.NDArray[np.float64]
    columns: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class RowProduct:
    """A product of one row: the name of its 16-bit numbers, their zero point, and its sizes.

    ``rank`` is the result's. What is on the right is signed, or has the zero point 128.
    """

    stored: str
    zero: int
    rows: int
    columns: int
    rank: int
    is_signed: bool


def row_product(
    stored: str, spec: TensorSpec, right: Right, sizes: tuple[int, int, int], middle: int | None
) -> RowProduct | None:
    """A product of one row that an operator of ours could compute; ``sizes`` are rows, columns and the rank.

    ``middle`` is the zero point of what is on the right, if it is computed.
    """
    quant = encoding.encoding_of(spec)
    assert isinstance(quant, ScaleOffset)
    if middle not in (None, _MIDDLE):
        return None
    return RowProduct(stored, -quant.offset, *sizes, is_signed=not right.zero)


def constant_right(graph: OnnxGraph, spec: TensorSpec, stored: Array) -> Right | None:
    """Constant weights [in, out], given as they are stored. None if no wide product takes them."""
    if spec.dtype.bits != 8 or not spec.dtype.is_fixed_point:
        return None
    if stored.ndim != 2 or len(stored) > _longest(_MIDDLE):
        return None
    dtype, levels, quant = integer_weights(spec.dtype, stored, encoding.encoding_of(spec))
    middle = 0 if dtype.signed else _MIDDLE
    if any(zero != middle for zero in encoding.zero_points(quant)):
        return None
    scales = np.array(quant.scale if isinstance(quant, ScaleOffset) else quant.scales)
    if middle:
        return Right(graph.const(levels), graph.const(np.array(middle, np.uint8)), scales)
    return Right(graph.const(levels), "", scales, levels.sum(axis=0, dtype=np.int64))


def computed_right(graph: OnnxGraph, spec: TensorSpec, name: str, rows: int) -> Right | None:
    """A tensor [in, out] that is computed. None if no wide product takes it."""
    quant = encoding.encoding_of(spec)
    if spec.dtype is not DType.UFIXED_POINT_8 or not isinstance(quant, ScaleOffset) or rows > _longest(255):
        return None
    if not encoding.has_operator(spec.dtype, quant):
        return None
    return Right(name, graph.const(np.array(-quant.offset, np.uint8)), np.array(quant.scale))


def _longest(most: int) -> int:
    """How many products of a byte with numbers up to this have a sum of 32 bits."""
    return ((1 << 31) - 1) // (255 * most)


def is_wide(spec: TensorSpec) -> bool:
    """Whether a tensor's numbers can be taken apart: 16 bits, and one zero point that is such a number."""
    quant = encoding.encoding_of(spec)
    wide = spec.dtype is DType.UFIXED_POINT_16 and isinstance(quant, ScaleOffset)
    return wide and encoding.has_operator(spec.dtype, quant)


def piece_bits() -> tuple[int, ...]:
    """Bits of each piece, the lowest first: kernels that add pairs of products in 16 bits take at most 7."""
    return (5, 5, 6) if integer_kernels() is IntegerKernels.SATURATES else (8, 8)


def pieces(graph: OnnxGraph, stored: str) -> tuple[str, ...]:
    """What 16-bit numbers are made of, as bytes; whole numbers below 2**16 and their halves are exact in float."""
    rest, lower_bytes = graph.node("Cast", [stored], to="float32")[0], []
    if piece_bits() == (8, 8):
        # Conversion between integers keeps the lowest bits, conversion from float cuts off the fraction.
        higher = graph.node("Mul", [rest, _number(graph, 2.0**-8)])[0]
        return graph.node("Cast", [stored], to="uint8")[0], graph.node("Cast", [higher], to="uint8")[0]
    for count in piece_bits()[:-1]:
        higher = graph.node("Floor", [graph.node("Mul", [rest, _number(graph, 2.0**-count)])[0]])[0]
        lower = graph.node("Sub", [rest, graph.node("Mul", [higher, _number(graph, 2.0**count)])[0]])[0]
        lower_bytes.append(graph.node("Cast", [lower], to="uint8")[0])
        rest = higher
    return (*lower_bytes, graph.node("Cast", [rest], to="uint8")[0])


def wide_product(graph: OnnxGraph, parts: Sequence[str], spec: TensorSpec, right: Right, *, one_row: bool) -> str:
    """Real values of the product of a tensor, given in ``pieces``, with what is on its right.

    ``one_row``: there is a single one, for which the runtime has a kernel that knows no zero point.
    """
    quant = encoding.encoding_of(spec)
    assert isinstance(quant, ScaleOffset)
    zero = -quant.offset
    total, shift = "", 0
    for part, count in zip(parts, piece_bits(), strict=True):
        lower = zero >> shift & (1 << count) - 1
        if one_row and right.columns is not None:
            sums = graph.node("MatMulInteger", [part, right.name])[0]
            sums = graph.node("Add", [sums, graph.const((-lower * right.columns).astype(np.int32))])[0]
        else:
            operands = [part, right.name, graph.const(np.array(lower, np.uint8))]
            sums = graph.node("MatMulInteger", [*operands, right.zero] if right.zero else operands)[0]
        value = graph.node("Cast", [sums], to="float32")[0]
        if total:
            value = graph.node("Mul", [value, _number(graph, 2.0**shift)])[0]
            total = graph.node("Add", [value, total])[0]
        else:
            total = value
        shift += count
    return graph.node("Mul", [total, graph.const((right.scales * quant.scale).astype(np.float32))])[0]


def _number(graph: OnnxGraph, value: float) -> str:
    return graph.const(np.array(value, np.float32))
