"""Encodings: real numbers to stored ones and back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as some

from openhtp.core.errors import InvalidArgument
from openhtp.core.quant import AxisScaleOffset, ScaleOffset

scales = some.floats(1e-6, 1e6)
offsets = some.integers(-70_000, 70_000)
RANGES = [(0, 255), (-128, 127), (0, 65535), (-32768, 32767), (-8, 7)]


@given(scales, offsets, some.sampled_from(RANGES), some.data())
def test_stored_numbers_survive_the_way_to_real_ones_and_back(scale, offset, bounds, data) -> None:
    stored = np.array(data.draw(some.lists(some.integers(*bounds), min_size=1)))
    encoding = ScaleOffset(scale, offset)
    assert encoding.quantize(encoding.dequantize(stored), *bounds).tolist() == stored.tolist()


@given(scales, some.sampled_from(RANGES), some.lists(some.floats(-1e6, 1e6), min_size=1), some.integers(-300, 300))
def test_quantizing_is_to_the_nearest_that_there_is(scale, bounds, real, offset) -> None:
    encoding, numbers = ScaleOffset(scale, offset), np.array(real)
    stored = encoding.quantize(numbers, *bounds)
    assert stored.min() >= bounds[0]
    assert stored.max() <= bounds[1]
    lowest, highest = (encoding.dequantize(np.array(bound)) for bound in bounds)
    inside = (numbers >= lowest) & (numbers <= highest)
    error = np.abs(encoding.dequantize(stored) - numbers)
    assert np.all(error[inside] <= scale / 2 * (1 + 1e-6))
    assert np.all(stored[numbers < lowest - scale] == bounds[0])
    assert np.all(stored[numbers > highest + scale] == bounds[1])


@given(scales, offsets)
def test_the_zero_point_stands_for_zero(scale, offset) -> None:
    encoding = ScaleOffset(scale, offset)
    assert encoding.dequantize(np.array(encoding.zero_point)) == 0
    assert encoding.zero_point == -offset


@given(some.lists(some.tuples(scales, some.integers(-300, 300)), min_size=1, max_size=5), some.integers(0, 2))
def test_an_axis_has_each_index_encoded_by_itself(pairs, axis) -> None:
    whole = AxisScaleOffset(axis, tuple(s for s, _ in pairs), tuple(o for _, o in pairs))
    shape = [2, 3, 2]
    shape[axis] = len(pairs)
    stored = np.arange(math.prod(shape)).reshape(shape) % 200
    real = whole.dequantize(stored)
    for index, (scale, offset) in enumerate(pairs):
        alone = ScaleOffset(scale, offset)
        assert np.array_equal(real.take(index, axis), alone.dequantize(stored.take(index, axis)))
    assert np.array_equal(whole.quantize(real, 0, 255), stored)


def test_ties_go_to_the_even_number() -> None:
    assert ScaleOffset(1.0).quantize([0.5, 1.5, 2.5, -0.5], -128, 127).tolist() == [0, 2, 2, 0]


def test_offsets_of_an_axis_are_zero_unless_given() -> None:
    assert AxisScaleOffset(0, (0.5, 0.25)).offsets == (0, 0)


@pytest.mark.parametrize("scale", [0, -1.0, math.nan, math.inf, "1", None])
def test_scales_are_above_zero(scale: object) -> None:
    with pytest.raises(InvalidArgument, match=r"quantization scale is .*; expected a finite number above 0"):
        ScaleOffset(scale)  # type: ignore[arg-type]


@pytest.mark.parametrize(("many", "zeros"), [((), ()), ((1.0,), (1, 2)), ((1.0, 2.0), (1,))])
def test_an_axis_has_as_many_offsets_as_scales(many: tuple[float, ...], zeros: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match=rf"{len(many)} scales and {len(zeros)} offsets"):
        AxisScaleOffset(0, many, zeros)


def test_numbers_of_numpy_become_plain_ones() -> None:
    encoding = ScaleOffset(np.float32(0.5), np.int64(-3))  # type: ignore[arg-type]
    assert (type(encoding.scale), type(encoding.offset)) == (float, int)
    assert encoding == ScaleOffset(0.5, -3)
    assert hash(encoding) == hash(ScaleOffset(0.5, -3))
