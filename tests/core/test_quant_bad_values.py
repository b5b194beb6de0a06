"""Encodings take arrays from anyone: what holds no numbers, or does not fit the axis, is named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import openhtp as htp

ONE = htp.ScaleOffset(0.5, -3)
PER_AXIS = htp.AxisScaleOffset(1, (0.5, 2.0))


def test_there_and_back() -> None:
    assert ONE.quantize([1.0, 1.3, -9], 0, 255).tolist() == [5, 6, 0]
    assert ONE.dequantize(np.array([5, 6], np.uint8)).tolist() == [1.0, 1.5]
    stored = PER_AXIS.quantize([[1.0, 4.0], [2.0, 8.0]], -128, 127)
    assert stored.tolist() == [[2, 2], [4, 4]]
    assert PER_AXIS.dequantize(stored).tolist() == [[1.0, 4.0], [2.0, 8.0]]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: ONE.quantize("text", 0, 255), "a str that holds no numbers"),
        (lambda: ONE.dequantize({"x": None}), "a dict that holds no numbers"),
        (lambda: ONE.quantize([[1], [1, 2]], 0, 255), "a list that holds no numbers"),
        (lambda: ONE.quantize([1], 0, int), "expected whole numbers of 32 bits"),
        (lambda: ONE.quantize([1], 0, 10**400), "expected whole numbers of 32 bits"),
        (lambda: PER_AXIS.quantize(1.0, 0, 255), r"shape \[\]; expected 2 elements on axis 1"),
        (lambda: PER_AXIS.dequantize(np.ones((2, 3))), r"shape \[2, 3\]; expected 2 elements on axis 1"),
    ],
)
def test_what_does_not_fit(call: Callable[[], object], problem: str) -> None:
    with pytest.raises(htp.InvalidArgument, match=problem):
        call()
