"""An ONNX value in the QNN graph: one or more tensors that hold it, each with its axes in some order.

ONNX images are channel-first, QNN's are channel-last. Rather than moving data at every border, a value remembers
in which axis orders (*forms*) it exists; an op that needs another order gets a transposition, made once and
shared. An ONNX Transpose makes no node at all: its output is the same tensors, looked at in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.quant import AxisScaleOffset, Encoding
from openhtp.core.tensor import TensorSpec
from openhtp.frontend.model import Array, Shape

# Axis i of the tensor is axis perm[i] of the ONNX value.
Perm = tuple[int, ...]


@dataclass(slots=True, eq=False)
class OnnxValue:
    """An ONNX value. ``data`` holds a constant as stored, in ONNX's order of axes.

    ``dtype`` and ``quant`` are those of its tensors. ``variants`` are the same numbers in other types.
    """

    name: str
    shape: Shape
    dtype: DType
    quant: Encoding | None = None
    data: Array | None = None
    forms: dict[Perm, TensorSpec] = field(default_factory=dict)
    variants: dict[tuple[DType, Encoding | None], OnnxValue] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_constant(self) -> bool:
        """Whether the numbers of the value are known while the model is imported."""
        return self.data is not None

    @property
    def is_real(self) -> bool:
        """Whether it stands for real numbers, in floating or fixed point."""
        return self.dtype.is_float or self.dtype.is_fixed_point

    def real(self) -> Array | None:
        """The numbers of a constant: real values, or integers."""
        if self.data is None:
            return None
        return self.data if self.quant is None else self.quant.dequantize(self.data)


def identity(rank: int) -> Perm:
    """Axes as in ONNX."""
    return tuple(range(rank))


def channel_last(rank: int) -> Perm:
    """Batch, space, channels."""
    return (0, *range(2, rank), 1) if rank > 2 else identity(rank)


def permuted(items: Sequence[int], perm: Perm) -> tuple[int, ...]:
    """Per-axis numbers in a form's order."""
    return tuple(items[axis] for axis in perm)


def move_between(have: Perm, want: Perm) -> Perm:
    """The transposition that turns one form into another."""
    return tuple(have.index(axis) for axis in want)


def same_order(shape: Shape, one: Perm, other: Perm) -> bool:
    """Whether two forms hold the elements in the same order: they differ in axes of size 1 only."""

    def long(perm: Perm) -> list[int]:
        return [axis for axis in perm if shape[axis] > 1]

    return long(one) == long(other)


def moved_encoding(quant: Encoding | None, perm: Perm) -> Encoding | None:
    """A per-axis encoding, following its axis into a form."""
    if isinstance(quant, AxisScaleOffset):
        return AxisScaleOffset(perm.index(quant.axis), quant.scales, quant.offsets)
    return quant


def transposed_forms(value: OnnxValue, perm: Sequence[int]) -> dict[Perm, TensorSpec]:
    """The tensors of a value, as forms of its ONNX transposition (output axis i is input axis perm[i])."""
    back = {axis: index for index, axis in enumerate(perm)}
    return {tuple(back[axis] for axis in form): spec for form, spec in value.forms.items()}


def stored(real: Array, dtype: DType, quant: Encoding | None) -> Array:
    """Numbers as a tensor of this type stores them."""
    if quant is not None:
        return quant.quantize(real, *dtype.integer_range).astype(dtype.numpy)
    if dtype.is_float or dtype is DType.BOOL_8:
        return np.asarray(real, dtype.numpy)
    return np.clip(real, *dtype.integer_range).astype(dtype.numpy)
