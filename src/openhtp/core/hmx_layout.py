"""HMX_WEIGHT_LAYOUT: the tiles in which the matrix unit reads a KV cache, and the way there and back.

A cache of one head is a matrix [DIN, DOUT] of signed bytes: keys are [head_dim, context] in tiles 256 wide, values
[context, head_dim] in tiles 64 wide. Within a tile, 32 by 32 elements make a block of 1024 bytes::

    offset(i, o) = o/T * DIN*T + i/32 * 32*T + o%T/32 * 1024 + i%32/4 * 128 + o%32 * 4 + i%4

Nothing is padded, and heads follow each other. An 8-bit tensor with zero point 128 is stored less 128, so that an
empty place is a zero byte. All functions take and return arrays; positions of tokens are counted from 0.
"""

from __future__ import annotations

import enum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from openhtp.core.errors import InvalidArgument

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

# New tokens are placed, and blocks end, at multiples of this many positions.
BLOCK = 32
# Sizes that the layout can hold: a whole tile of keys, and one of values.
CONTEXT_MULTIPLE = 256
HEAD_DIM_MULTIPLE = 64
# Most tokens that one pass may add to a native cache.
MOST_NEW_TOKENS = 256
_SIGN = np.uint8(0x80)


class Side(enum.Enum):
    """Which half of the cache: the value is the width of its tiles."""

    KEY = 256
    VALUE = 64

    @property
    def token_axis(self) -> int:
        """Where the tokens are in the tensor's shape, from its end."""
        return -1 if self is Side.KEY else -2


Half = Side | Literal["key", "value"]


def side_of(side: Half) -> Side:
    """The side, given itself or by name."""
    if isinstance(side, Side):
        return side
    if not isinstance(side, str) or side.upper() not in Side.__members__:
        raise InvalidArgument(f"side is {side!r}; expected 'key' or 'value'")
    return Side[side.upper()]


def round_up(tokens: int) -> int:
    """Tokens in whole blocks."""
    return -(-tokens // BLOCK) * BLOCK


def sizes_problem(context: int, head_dim: int) -> str | None:
    """Why the layout cannot hold a cache of this size; None if it can."""
    if context < 1 or context % CONTEXT_MULTIPLE:
        following = max(1, -(-context // CONTEXT_MULTIPLE)) * CONTEXT_MULTIPLE
        return f"context {context} is no multiple of {CONTEXT_MULTIPLE} (next: {following})"
    if head_dim < 1 or head_dim % HEAD_DIM_MULTIPLE:
        return f"head_dim {head_dim} is no multiple of {HEAD_DIM_MULTIPLE}: use flat KV"
    return None


def tokens_to_native(side: Half, new: Array) -> Bytes:
    """New tokens as a graph gives them out, in tiles of their own.

    Keys are [..., head_dim, tokens], values [..., tokens, head_dim]. There are a multiple of 32 of them,
    and a tile of keys is no wider than that.
    """
    half = side_of(side)
    rows, columns = new.shape[-2:]
    tile = min(columns, half.value)
    split = (new.view(np.uint8) ^ _SIGN).reshape(-1, rows // 32, 8, 4, columns // tile, tile // 32, 32)
    return np.ascontiguousarray(split.transpose(0, 4, 1, 5, 2, 6, 3)).reshape(new.shape)


def tokens_from_native(side: Half, tiled: Array) -> Bytes:
    """The inverse of ``tokens_to_native``."""
    half = side_of(side)
    rows, columns = tiled.shape[-2:]
    tile = min(columns, half.value)
    split = tiled.view(np.uint8).reshape(-1, columns // tile, rows // 32, tile // 32, 8, 32, 4)
    return np.ascontiguousarray(split.transpose(0, 2, 4, 6, 1, 3, 5) ^ _SIGN).reshape(tiled.shape)


def write_tokens(side: Half, native: Bytes, begin: int, new: Bytes) -> None:
    """Put new tokens [..., tokens, head_dim] of stored u8 numbers into a native cache, from position ``begin`` on.

    What that costs does not depend on the size of the cache.
    """
    half = side_of(side)
    count, head_dim = new.shape[-2:]
    context = native.shape[half.token_axis]
    if not 0 <= begin <= context - count:
        raise InvalidArgument(f"tokens {begin} to {begin + count} of a context of {context}")
    signed = (new ^ _SIGN).reshape(-1, count, head_dim)
    at = np.arange(begin, begin + count)
    if half is Side.KEY:
        places = native.reshape(-1, context // 256, head_dim // 32, 8, 8, 32, 4)
        tokens = signed.reshape(-1, count, head_dim // 32, 8, 4).transpose(1, 0, 2, 3, 4)
        if count == 1:
            places[:, begin // 256, :, begin % 256 // 32, :, begin % 32, :] = tokens[0]
        else:
            places[:, at // 256, :, at % 256 // 32, :, at % 32, :] = tokens
        return
    spots = native.reshape(-1, head_dim // 64, context // 32, 2, 8, 32, 4)
    values = signed.reshape(-1, count, head_dim // 64, 2, 32).transpose(1, 0, 2, 3, 4)
    if count == 1:
        spots[:, :, begin // 32, :, begin % 32 // 4, :, begin % 4] = values[0]
    else:
        spots[:, :, at // 32, :, at % 32 // 4, :, at % 4] = values


def read_tokens(side: Half, native: Bytes, begin: int, end: int) -> Bytes:
    """Stored u8 numbers [heads, tokens, head_dim] of some positions."""
    half = side_of(side)
    rows, columns = _checked_shape(half, native)
    at = np.arange(begin, end)
    if half is Side.KEY:
        places = native.reshape(-1, columns // 256, rows // 32, 8, 8, 32, 4)
        picked = places[:, at // 256, :, at % 256 // 32, :, at % 32, :]
        signed = picked.transpose(1, 0, 2, 3, 4).reshape(-1, len(at), rows)
    else:
        spots = native.reshape(-1, columns // 64, rows // 32, 2, 8, 32, 4)
        picked = spots[:, :, at // 32, :, at % 32 // 4, :, at % 4]
        signed = picked.transpose(1, 0, 2, 3, 4).reshape(-1, len(at), columns)
    flat: Bytes = signed ^ _SIGN
    return flat


def _checked_shape(side: Side, array: Array) -> tuple[int, int]:
    if array.ndim < 2 or array.dtype.itemsize != 1 or not array.flags.c_contiguous:
        raise InvalidArgument(
            f"a cache of {array.dtype}{list(array.shape)}; expected contiguous bytes of rank 2 or more"
        )
    rows, columns = array.shape[-2:]
    context, head_dim = (columns, rows) if side is Side.KEY else (rows, columns)
    problem = sizes_problem(context, head_dim)
    if problem is not None:
        raise InvalidArgument(f"the HMX layout does not hold this {side.name.lower()} cache: {problem}")
    return rows, columns
