"""The layout of native KV caches: fixed points, there and back, and token by token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from openhtp.core import hmx_layout as hmx
from openhtp.core.errors import InvalidArgument
from tests.core.layout_offsets import offset_of

# (token, element): offset; the sizes are part of the case, as values depend on the context.
KEYS = {(0, 1): 1, (1, 0): 4, (0, 4): 128, (32, 0): 1024, (0, 32): 8192, (256, 0): 16384, (511, 63): 32767}
VALUES = {(1, 0): 1, (0, 1): 4, (4, 0): 128, (0, 32): 1024, (32, 0): 2048, (0, 64): 32768, (511, 127): 65535}


@pytest.mark.parametrize(("place", "offset"), KEYS.items())
def test_fixed_points_of_keys(place: tuple[int, int], offset: int) -> None:
    assert offset_of("key", *place, context=512, head_dim=64) == offset


@pytest.mark.parametrize(("place", "offset"), VALUES.items())
def test_fixed_points_of_values(place: tuple[int, int], offset: int) -> None:
    assert offset_of("value", *place, context=512, head_dim=128) == offset


sides = st.sampled_from(["key", "value"])
sizes = st.tuples(st.integers(1, 3), st.sampled_from([64, 128, 192, 256]), st.sampled_from([256, 512, 768, 8192]))


def shape_of(side: str, heads: int, head_dim: int, context: int) -> tuple[int, ...]:
    return (heads, 1, head_dim, context) if side == "key" else (heads, 1, context, head_dim)


@given(side=sides, size=sizes, seed=st.integers(0, 1 << 30))
@settings(max_examples=25, deadline=None)
def test_there_and_back(side: str, size: tuple[int, int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    flat = rng.integers(0, 256, shape_of(side, *size), np.uint8)
    native = hmx.tokens_to_native(side, flat)
    assert np.array_equal(hmx.tokens_from_native(side, native), flat)
    heads, head_dim, context = size
    token, element, head = rng.integers(context), rng.integers(head_dim), rng.integers(heads)
    at = offset_of(side, int(token), int(element), context=context, head_dim=head_dim)
    expected = flat[head, 0, element, token] if side == "key" else flat[head, 0, token, element]
    assert native.reshape(heads, -1)[head, at] == expected ^ 0x80


@given(
    side=sides,
    size=sizes,
    runs=st.lists(st.tuples(st.integers(0, 191), st.integers(1, 64)), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=25, deadline=None)
def test_token_by_token_is_the_whole(
    side: str, size: tuple[int, int, int], runs: list[tuple[int, int]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    heads, head_dim, _ = size
    flat = np.full(shape_of(side, *size), 128, np.uint8)
    native = np.zeros_like(flat)
    for begin, count in runs:
        new = rng.integers(0, 256, (heads, 1, count, head_dim), np.uint8)
        hmx.write_tokens(side, native, begin, new)
        if side == "key":
            flat[..., begin : begin + count] = new.transpose(0, 1, 3, 2)
        else:
            flat[..., begin : begin + count, :] = new
        assert np.array_equal(hmx.read_tokens(side, native, begin, begin + count), new[:, 0])
    assert np.array_equal(native, hmx.tokens_to_native(side, flat))


def test_every_place_is_used_once() -> None:
    for side, head_dim, context in (("key", 128, 512), ("value", 128, 512)):
        taken = {
            offset_of(side, token, element, context=context, head_dim=head_dim)
            for token in range(context)
            for element in range(head_dim)
        }
        assert taken == set(range(head_dim * context))


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"context 1920 is no multiple of 256 \(next: 2048\)"):
        hmx.read_tokens("key", np.zeros((1, 1, 64, 1920), np.uint8), 0, 1)
    with pytest.raises(InvalidArgument, match="head_dim 96 is no multiple of 64: use flat KV"):
        hmx.read_tokens("value", np.zeros((1, 1, 256, 96), np.uint8), 0, 1)
    with pytest.raises(InvalidArgument, match="tokens 250 to 258 of a context of 256"):
        hmx.write_tokens("key", np.zeros((1, 1, 64, 256), np.uint8), 250, np.zeros((1, 1, 8, 64), np.uint8))
    with pytest.raises(InvalidArgument, match="expected 'key' or 'value'"):
        hmx.read_tokens("query", np.zeros((1, 1, 256, 64), np.uint8), 0, 1)  # type: ignore[arg-type]
