"""Float constants that are the real values of 8-bit or 16-bit weights, and are stored as these weights.

Where 16-bit activations meet 8-bit weights, the runtime multiplies floats. It gets a float form of the weights,
four times as large, in an order of its own. Only the weights are stored, in that order. Their float form is made
when they are loaded, which takes less time than reading and checking it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorSpec
from openhtp.engine import encoding
from openhtp.engine.onnx_graph import numpy_type, onnx_type
from openhtp.engine.sessions import aligned_room
from openhtp.program.arranging import by_trait, find_arrangements, joined_sizes, put_back
from openhtp.program.qnn_program import QnnProgram
from openhtp.program.records import Arrangement

Array = npt.NDArray[Any]
_Size = Annotated[int, msgspec.Meta(gt=0, lt=1 << 40)]

# Stored numbers of at most this many bytes: wider ones would save nothing.
_WIDEST = 2
# Offsets up to this leave sums with stored numbers that are exact in float32.
_LARGEST_OFFSET = 1 << 17
# Elements that are converted at a time, so that they stay in the cache from one operation to the next.
_AT_A_TIME = 1 << 15
# Scales that change from one element to the next are repeated up to this length: short rows are slow.
_ROW = 256


class Dequantized(msgspec.Struct, frozen=True):
    """``scale * (stored + offset)``: type and shape of the stored numbers, and the spread of scales.

    ``spread`` has as many sizes as ``shape``, each equal to it, or 1 where a scale is for all. ``scales`` are
    float32, or float64 if that is not exact; ``offsets`` are int32, or left out where they are 0.
    """

    dtype: int
    shape: list[_Size]
    spread: list[_Size]
    scales: bytes
    offsets: bytes = b""


@dataclass(frozen=True, slots=True)
class ConstantOrigin:
    """The stored data that a float constant is made from."""

    stored: Array
    how: Dequantized


def find_origins(
    program: QnnProgram, constants: Mapping[str, Array]
) -> tuple[dict[str, ConstantOrigin], dict[str, tuple[Array, Arrangement]]]:
    """Which of an engine's constants are real values of a program's tensors, to the bit.

    Also returns, for each such tensor, how it is made from the stored data.
    """
    origins: dict[str, ConstantOrigin] = {}
    stored_in: dict[str, tuple[Array, Arrangement]] = {}
    names: dict[int, list[str]] = {}
    for name, array in constants.items():
        if array.dtype == np.float32:
            names.setdefault(id(array), []).append(name)
    candidates = by_trait([constants[same[0]] for same in names.values()])
    for tensor, data in program.statics.items() if candidates else ():
        spec = program.tensors[tensor]
        if not spec.dtype.is_fixed_point or data.dtype.itemsize > _WIDEST:
            continue
        real = encoding.real_values(spec, data).astype(np.float32)
        for constant, how in find_arrangements(real, candidates):
            origin = None if names[id(constant)][0] in origins else _origin(spec, data, constant, how)
            if origin is not None:
                origins |= dict.fromkeys(names[id(constant)], origin)
                stored_in.setdefault(tensor, (origin.stored, how))
    return origins, stored_in


def _origin(spec: TensorSpec, data: Array, constant: Array, how: Arrangement) -> ConstantOrigin | None:
    """The origin of a constant that holds the real values in this arrangement; None without an exact one."""
    quant = encoding.encoding_of(spec)
    sizes = joined_sizes(how)
    if isinstance(quant, ScaleOffset):
        axis, scales, offsets = None, np.array([quant.scale]), np.array([quant.offset])
    else:
        axis = quant.axis % len(sizes)
        scales, offsets = np.ones(sizes[axis]), np.zeros(sizes[axis], np.int64)
        scales[: len(quant.scales)], offsets[: len(quant.offsets)] = quant.scales, quant.offsets
    if np.abs(offsets).max() > _LARGEST_OFFSET:
        return None
    along = [1] * len(sizes)
    along[axis or 0] = len(offsets)
    # The filling of incomplete blocks stands for 0.
    zeros = (-offsets).astype(data.dtype)
    if sizes != spec.shape and (zeros != -offsets).any():
        return None
    stored = put_back(data, how, zeros.reshape(along)).reshape(constant.shape)
    origin = ConstantOrigin(stored, _described(data.dtype, how, axis, scales, offsets))
    real = dequantize(origin.how, stored.reshape(-1).view(np.uint8).data)
    return origin if np.array_equal(real.view(np.uint32), constant.reshape(-1).view(np.uint32)) else None


def _described(
    dtype: np.dtype[Any], how: Arrangement, axis: int | None, scales: Array, offsets: Array
) -> Dequantized:
    """Scales and offsets, one for each place on a tensor's axis, in the order of the stored data."""
    spread: set[int] = set()
    if axis is not None:
        counts = how.joined or [1] * len(how.order)
        begin = sum(counts[:axis])
        own = how.order[begin : begin + counts[axis]]
        sizes = [how.shape[own_axis] for own_axis in own]
        scales, offsets = (np.transpose(one.reshape(sizes), np.argsort(own)) for one in (scales, offsets))
        spread = set(own)
    places = [own_axis for own_axis, size in enumerate(how.shape) if size > 1]
    runs = [list(run) for _, run in itertools.groupby(places, spread.__contains__)] or [[0]]
    shape = [math.prod(how.shape[own_axis] for own_axis in run) for run in runs]
    exact = scales.astype(np.float32)
    return Dequantized(
        onnx_type(dtype),
        shape,
        [size if run[0] in spread else 1 for run, size in zip(runs, shape, strict=True)],
        (exact if np.array_equal(exact, scales) else scales.astype(np.float64)).tobytes(),
        offsets.astype(np.int32).tobytes() if offsets.any() else b"",
    )


def dequantize(how: Dequantized, data: memoryview) -> npt.NDArray[np.float32]:
    """Real values of stored numbers, one after the other, in memory of their own.

    Raises ValueError if they do not fit together.
    """
    dtype = numpy_type(how.dtype) if how.dtype in _STORED else None
    count = math.prod(how.spread)
    fits = len(how.shape) == len(how.spread) and all(
        wide in (1, size) for size, wide in zip(how.shape, how.spread, strict=True)
    )
    if dtype is None or not fits or math.prod(how.shape) * dtype.itemsize != data.nbytes:
        raise ValueError(f"{data.nbytes} bytes are no numbers of shape {how.shape} with scales {how.spread}")
    if len(how.scales) not in (4 * count, 8 * count) or len(how.offsets) not in (0, 4 * count):
        raise ValueError(f"{len(how.scales)} and {len(how.offsets)} bytes are not {count} scales and offsets")
    scales: Array = np.frombuffer(how.scales, np.float32 if len(how.scales) == 4 * count else np.float64)
    offsets = np.frombuffer(how.offsets, np.int32).astype(scales.dtype) if how.offsets else None
    shape, spread = list(how.shape), list(how.spread)
    repeats = 1
    if len(shape) > 1 and spread[-2] == 1 < spread[-1] < _ROW:
        repeats = math.gcd(shape[-2], _ROW // spread[-1])
        shape[-2:] = shape[-2] // repeats, shape[-1] * repeats
    stored = np.frombuffer(data, dtype).reshape(shape)
    real = aligned_room(4 * stored.size).view(np.float32)
    _convert(
        stored,
        real.reshape(shape),
        np.tile(scales.reshape(spread), repeats),
        None if offsets is None else np.tile(offsets.reshape(spread), repeats),
    )
    return real


_STORED = frozenset(map(onnx_type, (np.uint8, np.int8, np.uint16, np.int16)))


def _convert(stored: Array, real: Array, scales: Array, offsets: Array | None) -> None:
    for part in _pieces(stored.shape):
        values = real[part] if scales.dtype == np.float32 else np.empty(real[part].shape, scales.dtype)
        own = part if len(scales) > 1 else slice(None)
        values[...] = stored[part]
        if offsets is not None:
            values += offsets[own]
        values *= scales[own]
        if values.dtype != real.dtype:
            real[part] = values


def _pieces(shape: tuple[int, ...]) -> Iterator[slice]:
    step = max(1, _AT_A_TIME // math.prod(shape[1:]))
    return (slice(begin, begin + step) for begin in range(0, shape[0], step))
