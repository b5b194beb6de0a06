"""Weights of four bits in blocks (low power blockwise quantization), expanded as the hardware does it.

A channel has one scale, and each of its blocks a small whole number by which that is multiplied. So a weight times
the number of its block is a number of eight bits in the channel's scale: a per-channel encoding, to the bit.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.abi import memory
from openhtp.abi.structs import struct
from openhtp.core import status as st
from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument
from openhtp.core.quant import AxisScaleOffset
from openhtp.core.tensor import TensorSpec

_NUMBERS = {0: ctypes.c_uint8, 1: ctypes.c_uint16}
_MOST_BLOCKS = 1 << 26
_FOUR_BITS = (-8, 15)  # as they are, or the lower halves of bytes
_EIGHT_BITS = (-128, 127)


def expansion_of(address: int | None, shape: tuple[int, ...], name: str) -> AxisScaleOffset:
    """The encoding of the expanded weights."""
    given = _given(address, shape, name)
    pairs = memory.array(
        struct("ScaleOffset"), shape[given.axis], given.scale_offsets or 0, f"scales of tensor {name!r}"
    )
    if any(pair.offset for pair in pairs):
        raise _bad(f"tensor {name!r} is quantized in blocks with an offset; expected none, it must be symmetric")
    return AxisScaleOffset(given.axis, tuple(pair.scale for pair in pairs))


def expand(address: int | None, spec: TensorSpec, stored: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    """Weights times the numbers of their blocks."""
    given = _given(address, spec.shape, spec.name)
    channels, axis = spec.shape[given.axis], _block_axis(given.axis, spec.shape)
    kind = _NUMBERS[given.storage]
    count = channels * given.blocks
    if spec.dtype is not DType.SFIXED_POINT_8 or count > _MOST_BLOCKS or spec.shape[axis] % given.blocks:
        raise _bad(
            f"tensor {spec} is quantized in {given.blocks} blocks; expected signed weights and a number of blocks"
            f" that divides the {spec.shape[axis]} elements of axis {axis}"
        )
    numbers = np.frombuffer(
        memory.read(given.numbers or 0, count * ctypes.sizeof(kind), f"scales of the blocks of {spec.name!r}"),
        kind,
    ).reshape(channels, given.blocks)
    if stored.size and not (_FOUR_BITS[0] <= stored.min() and stored.max() <= _FOUR_BITS[1]):
        raise _bad(f"tensor {spec.name!r} is quantized in blocks and has weights of more than four bits")
    spread = np.repeat(numbers.astype(np.int32), spec.shape[axis] // given.blocks, axis=1)
    shape = [1] * spec.rank
    shape[given.axis], shape[axis] = channels, spec.shape[axis]
    factors = (spread if given.axis < axis else spread.T).reshape(shape)
    wide: npt.NDArray[Any] = (np.left_shift(stored, 4) >> 4).astype(np.int32) * factors
    if wide.size and not (_EIGHT_BITS[0] <= wide.min() and wide.max() <= _EIGHT_BITS[1]):
        raise _bad(
            f"tensor {spec.name!r} has weights of {wide.min()} to {wide.max()} once its blocks are expanded;"
            " expected eight bits, as from numbers of at most 16"
        )
    expanded: npt.NDArray[np.int8] = wide.astype(np.int8)
    return expanded


def _given(address: int | None, shape: tuple[int, ...], name: str) -> Any:
    given = memory.structure(struct("BlockwiseExpansion"), address or 0, f"the encoding of tensor {name!r}")
    if len(shape) < 2 or not 0 <= given.axis < len(shape) or not given.blocks or given.storage not in _NUMBERS:
        raise _bad(
            f"tensor {name!r} {list(shape)} is quantized in {given.blocks} blocks on axis {given.axis} with scales"
            f" stored as {given.storage}; expected an existing axis, at least one block, and storage 0 or 1"
        )
    return given


def _block_axis(axis: int, shape: tuple[int, ...]) -> int:
    """Blocks are pieces of the input channels: of the last two axes the one that is not the channels'."""
    last = len(shape) - 1
    return last - 1 if axis == last else last


def _bad(message: str) -> InvalidArgument:
    return InvalidArgument(message, st.QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM)
