"""Weights in another order of axes, in blocks, or of the other signedness: the same data, stored once."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.errors import BadBinary
from openhtp.core.tensor import TensorSpec
from openhtp.program.records import Arrangement

Array = npt.NDArray[Any]
Candidates = dict[tuple[int, ...], list[Array]]

# Smaller data is not worth searching for.
_SMALLEST = 512
# How many elements are compared before the rest.
_PROBE = 64
_SIGN = np.uint8(0x80)
# Channels per block where an engine wants convolutions in blocks: as many as a vector holds.
_BLOCKS = (16, 8)


def arrange(stored: memoryview, spec: TensorSpec, how: Arrangement | None) -> Array:
    """The tensor's read-only data from the stored bytes. Raises BadBinary if the two do not fit."""
    if how is None:
        if stored.nbytes != spec.nbytes:
            raise BadBinary(f"tensor {spec} takes {spec.nbytes} bytes; its data has {stored.nbytes}")
        array: Array = np.frombuffer(stored, spec.dtype.numpy).reshape(spec.shape)
    else:
        _check(stored.nbytes, spec, how)
        array = np.array(_turned(np.frombuffer(stored, spec.dtype.numpy), how, spec.shape), order="C")
        if how.flipped:
            array.view(np.uint8)[...] ^= _SIGN
    array.flags.writeable = False
    return array


def _turned(data: Array, how: Arrangement, shape: tuple[int, ...]) -> Array:
    """Data in the order of a tensor of this shape."""
    turned = data.reshape(how.shape).transpose(how.order)
    return turned.reshape(joined_sizes(how))[tuple(map(slice, shape))] if how.joined else turned


def put_back(data: Array, how: Arrangement, fill: Array) -> Array:
    """A tensor's data as it is stored: ``arrange`` the other way round, without any flipping of signs.

    The unused rest of a block is filled with ``fill``.
    """
    whole = np.empty(joined_sizes(how), data.dtype)
    whole[...] = fill
    whole[tuple(map(slice, data.shape))] = data
    turned = whole.reshape([how.shape[axis] for axis in how.order])
    return np.ascontiguousarray(turned.transpose(np.argsort(how.order)))


def joined_sizes(how: Arrangement) -> tuple[int, ...]:
    """Sizes after the axes were joined."""
    sizes = iter([how.shape[axis] for axis in how.order])
    return tuple(math.prod(itertools.islice(sizes, count)) for count in how.joined or [1] * len(how.order))


def _check(nbytes: int, spec: TensorSpec, how: Arrangement) -> None:
    rank, itemsize = len(how.shape), spec.dtype.itemsize
    if sorted(how.order) != list(range(rank)) or math.prod(how.shape) * itemsize != nbytes:
        raise BadBinary(f"tensor {spec.name!r} is stored as {how.shape} with axes {how.order} in {nbytes} bytes")
    if sum(how.joined or how.shape[:0]) not in (0, rank) or (how.flipped and itemsize != 1):
        raise BadBinary(f"tensor {spec} cannot be made of {how.shape}, joined by {how.joined}")
    sizes = joined_sizes(how)
    fits = len(sizes) == len(spec.shape) and all(has >= size for has, size in zip(sizes, spec.shape, strict=True))
    if not fits or (not how.joined and sizes != spec.shape):
        raise BadBinary(f"tensor {spec} cannot be made of {how.shape} with axes {how.order}")


def by_trait(candidates: Sequence[Array]) -> Candidates:
    """Group arrays for ``find_arrangement``: a large network has hundreds of arrays of the same size."""
    groups: Candidates = {}
    for candidate in candidates:
        groups.setdefault(_trait(candidate), []).append(candidate)
    return groups


def _trait(data: Array) -> tuple[int, int]:
    """Numbers that stay the same when elements are reordered, signs flipped, or zeros appended to a block."""
    bits = data.view(f"u{data.dtype.itemsize}")
    if data.dtype.itemsize == 1:
        bits = bits & ~_SIGN
    return data.dtype.itemsize, int(bits.sum(dtype=np.uint64))


def find_arrangement(static: Array, candidates: Candidates) -> tuple[Array, Arrangement] | None:
    """The candidate with the same numbers in another order or signedness, and how; None without one."""
    return next(find_arrangements(static, candidates), None)


def find_arrangements(static: Array, candidates: Candidates) -> Iterator[tuple[Array, Arrangement]]:
    """All candidates with the same numbers, and one arrangement for each."""
    if static.nbytes < _SMALLEST or not candidates:
        return
    for candidate in candidates.get(_trait(static), ()):
        how = _arrangement(static, candidate.view(static.dtype))
        if how is not None:
            yield candidate, how


def _arrangement(static: Array, data: Array) -> Arrangement | None:
    signs = (False, True) if static.dtype.itemsize == 1 and static.dtype.kind in "iu" else (False,)
    for how in _arrangements(data.shape, static.shape):
        turned = _turned(data, how, static.shape)
        for flipped in signs:
            if _is_arranged_alike(static, turned, flipped=flipped):
                return Arrangement(how.shape, how.order, flipped, how.joined)
    return None


def _arrangements(shape: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[Arrangement]:
    """The arrangements in which data of this shape may hold a tensor of the wanted shape."""
    if len(shape) == len(wanted):
        for order in itertools.permutations(range(len(shape))):
            if tuple(shape[axis] for axis in order) == wanted:
                yield Arrangement(list(shape), list(order))
    if len(shape) == len(wanted) == 4:
        yield from (how for how in _blocked(*shape) if all(map(operator.ge, joined_sizes(how), wanted)))


def _blocked(out: int, into: int, high: int, wide: int) -> Iterator[Arrangement]:
    """Filters of a convolution in the QNN order, with output and input channels or only the former in blocks."""
    for block in _BLOCKS:
        if out % block == 0 and into % block == 0:
            shape = [out // block, into // block, high, wide, block, block]
            yield Arrangement(shape, [2, 3, 1, 4, 0, 5], joined=[1, 1, 2, 2])
        if out % block == 0:
            yield Arrangement([out // block, into, high, wide, block], [2, 3, 1, 0, 4], joined=[1, 1, 1, 2])


def _is_arranged_alike(static: Array, turned: Array, *, flipped: bool) -> bool:
    """Compare bits, so that different NaNs or zeros are not taken for equal."""
    bits = np.dtype(f"u{static.dtype.itemsize}")
    left, right = static.view(bits), turned.view(bits)
    mask = _SIGN if flipped else bits.type(0)
    return bool(
        np.array_equal(left.flat[:_PROBE], right.flat[:_PROBE] ^ mask) and np.array_equal(left, right ^ mask)
    )
